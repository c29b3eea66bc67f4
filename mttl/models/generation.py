"""Answers that a language model generates, as texts."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase


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
