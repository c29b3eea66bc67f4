"""Answers that a language model generates, as texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mttl.config.schema import Generation


def search_settings(generation: Generation, max_output_length: int) -> dict[str, Any]:
    """Return what a model's ``generate`` takes, in evaluation and wherever answers equal it.

    Args:
        generation: How answers are searched.
        max_output_length: Most tokens of an answer.
    """
    settings: dict[str, Any] = {
        "max_new_tokens": max_output_length,
        "num_beams": generation.num_beams,
        "do_sample": False,
    }
    if generation.num_beams > 1:
        settings["length_penalty"] = generation.length_penalty
    return settings


def end_also_at(model: PreTrainedModel, stops: Sequence[int]) -> None:
    """Let a model's answers end at further tokens, wherever they are generated.

    Args:
        model: Its ``generation_config`` is changed.
        stops: The tokens.
    """
    config: Any = model.generation_config
    own = config.eos_token_id
    ends = own if isinstance(own, list) else [] if own is None else [own]
    config.eos_token_id = [*ends, *(token for token in stops if token not in ends)]


def generate_texts(
    generate: Callable[..., Tensor],
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Tensor],
    *,
    decoder_only: bool,
    **settings: Any,
) -> list[str]:
    """Return an answer to every prompt, without blanks around it.

    Args:
        generate: A model's ``generate``.
        tokenizer: Turns ids into text.
        inputs: ``input_ids`` and ``attention_mask`` of the prompts.
        decoder_only: The model repeats the prompt before its answer; it is cut off.
        **settings: What else ``generate`` takes.
    """
    ids = generate(**inputs, **settings)
    if decoder_only:
        ids = ids[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
