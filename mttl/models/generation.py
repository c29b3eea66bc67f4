"""Answers that a language model generates, as texts."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from mttl.config.schema import Generation

_OF_DRAWS = ("temperature", "top_k", "top_p", "top_h", "min_p", "typical_p")
_OF_DRAWS += ("epsilon_cutoff", "eta_cutoff")
_OF_BEAMS = ("early_stopping", "length_penalty")
# Of a model's own settings: its ids, and what changes no answer.
_KEPT = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache"}
_KEPT |= {"cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size"}
_KEPT |= {"compile_config", "disable_compile", "max_length", "transformers_version"}
# What `generation.from_backbone` applies.
_OF_TOKENS = {"repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size"}
_OF_TOKENS |= {"encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"}
_OF_TOKENS |= {"begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"}
_OF_TOKENS |= {"min_length", "min_new_tokens", "sequence_bias", "early_stopping"}
_OF_TOKENS |= {"exponential_decay_length_penalty", "remove_invalid_values", "renormalize_logits"}

CACHES = ("cache", "past_key_values")  # from transformers 5.24 on, and before


def cache_argument(model: nn.Module) -> str:
    """Return the name of the cache among a model's arguments and outputs, which must have one."""
    taken = inspect.signature(model.forward).parameters
    if name := next((name for name in CACHES if name in taken), None):
        return name
    raise ValueError(
        f"a {type(model).__name__} takes none of {', '.join(CACHES)}, and so cannot continue what "
        "it has read; take a model of transformers that generates with a cache"
    )


def not_applied(generation: Generation, own: GenerationConfig | None) -> dict[str, Any]:
    """Return the settings of a model's own that are not applied, with neutral values."""
    applied = _OF_TOKENS if generation.from_backbone else set()
    return {name: value for name, value in own_settings(own).items() if name not in applied}


def own_settings(own: GenerationConfig | None) -> dict[str, Any]:
    """Return the neutral values of what a model's own settings change besides its ids."""
    neutral = vars(GenerationConfig())
    # transformers fills in these while it generates, where they are None.
    filled = getattr(GenerationConfig, "_get_default_generation_params", dict)()
    neutral = {name: filled.get(name, value) for name, value in neutral.items()}
    given = {} if own is None else vars(own)
    return {
        name: value
        for name, value in neutral.items()
        if name not in _KEPT and name[0] != "_"
        if given.get(name) not in (None, value) and given[name] is not False
    }


def search_settings(
    generation: Generation, max_output_length: int, own: GenerationConfig | None
) -> dict[str, Any]:
    """Return what a model's ``generate`` takes, in evaluation and wherever answers equal it.

    What no search applies is taken out of the model's ``own`` configuration.
    """
    for name in own_settings(own).keys() - _OF_TOKENS:
        setattr(own, name, None)
    settings = not_applied(generation, own) | {
        "max_new_tokens": max_output_length,
        "num_beams": generation.num_beams,
        "do_sample": False,
    }
    if generation.num_beams > 1:
        settings["length_penalty"] = generation.length_penalty
    return settings


def end_also_at(config: GenerationConfig, stops: Sequence[int]) -> None:
    """Let answers end at further tokens, wherever a model generates them."""
    own: Any = config.eos_token_id
    ends = own if isinstance(own, list) else [] if own is None else [own]
    config.eos_token_id = [*ends, *(token for token in stops if token not in ends)]


def search_file(
    generation: GenerationConfig, search: Mapping[str, Any], pad_id: int
) -> GenerationConfig:
    """Return the configuration by which a model's ``generate`` searches like `search_settings`."""
    config = copy.deepcopy(generation)
    config.update(**search, max_length=None)
    config._from_model_config = False  # or the settings of config.json go over these
    if config.pad_token_id is None:
        config.pad_token_id = pad_id
    # What has no meaning for this search may not stand in a file.
    for name in (*_OF_DRAWS, *(_OF_BEAMS if config.num_beams == 1 else ())):
        setattr(config, name, None)
    return config


def generate_texts(
    generate: Callable[..., Tensor],
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Tensor],
    *,
    decoder_only: bool,
    **settings: Any,
) -> list[str]:
    """Return an answer to every prompt, without blanks around it."""
    ids = generate(**inputs, **settings)
    if decoder_only:
        ids = ids[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
