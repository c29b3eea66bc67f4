"""Generation of answers by a language model, and its settings."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from mttl.config.schema import Generation

_OF_DRAWS = ("temperature", "top_k", "top_p", "top_h", "min_p", "typical_p")
_OF_DRAWS += ("epsilon_cutoff", "eta_cutoff")
# Settings of a model that always apply: its ids, and settings that do not affect answers.
_KEPT = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache"}
_KEPT |= {"cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size"}
_KEPT |= {"compile_config", "disable_compile", "max_length", "transformers_version"}
# Settings of a model that `generation.from_backbone` applies.
_OF_TOKENS = {"repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size"}
_OF_TOKENS |= {"encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"}
_OF_TOKENS |= {"begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"}
_OF_TOKENS |= {"min_length", "min_new_tokens", "sequence_bias", "early_stopping"}
_OF_TOKENS |= {"exponential_decay_length_penalty", "remove_invalid_values", "renormalize_logits"}

CACHES = ("cache", "past_key_values")  # since transformers 5.24, and before


def cache_argument(model: nn.Module) -> str:
    """Return the name of the cache in a model's arguments; ValueError if there is none."""
    taken = inspect.signature(model.forward).parameters
    if name := next((name for name in CACHES if name in taken), None):
        return name
    raise ValueError(
        f"{type(model).__name__} has none of the arguments {', '.join(CACHES)}; use a model of "
        "transformers that generates with a cache"
    )


def not_applied(generation: Generation, own: GenerationConfig | None) -> dict[str, Any]:
    """Return neutral values of the model's settings that are not applied."""
    applied = _OF_TOKENS if generation.from_backbone else set()
    return {name: value for name, value in own_settings(own).items() if name not in applied}


def own_settings(own: GenerationConfig | None) -> dict[str, Any]:
    """Return neutral values of the settings that a model changes, except for ids."""
    neutral = vars(GenerationConfig())
    # Defaults that transformers uses for None.
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
    """Return the arguments of a model's ``generate`` for evaluation.

    Settings that are never applied are removed from the model's ``own`` configuration.
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
    """Add further end tokens to a generation configuration."""
    own: Any = config.eos_token_id
    ends = own if isinstance(own, list) else [] if own is None else [own]
    config.eos_token_id = [*ends, *(token for token in stops if token not in ends)]


def search_file(
    generation: GenerationConfig, search: Mapping[str, Any], pad_id: int
) -> GenerationConfig:
    """Return a configuration with which ``generate`` searches by given `search_settings`."""
    config = copy.deepcopy(generation)
    config.update(**search, max_length=None)
    config._from_model_config = False  # otherwise settings of config.json take precedence
    if config.pad_token_id is None:
        config.pad_token_id = pad_id
    # Files must not have settings without effect on this search.
    of_beams = ("early_stopping", "length_penalty") if config.num_beams == 1 else ()
    for name in (*_OF_DRAWS, *of_beams):
        setattr(config, name, None)
    return config


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, skip: bool = True) -> str:
    """Return the text of ids, with none for special ones (``skip``) and those of no token."""
    if max(ids, default=0) >= len(tokenizer):
        known = _ids(tokenizer, len(tokenizer))
        ids = [token for token in ids if token in known]
    return str(tokenizer.decode([*ids], skip_special_tokens=skip))


@lru_cache(maxsize=4)
def _ids(tokenizer: PreTrainedTokenizerBase, n_tokens: int) -> frozenset[int]:
    """Return the ids of a tokenizer of so many tokens."""
    return frozenset(tokenizer.get_vocab().values())


def generate_texts(
    generate: Callable[..., Tensor],
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Tensor],
    *,
    decoder_only: bool,
    **settings: Any,
) -> list[str]:
    """Return the answer to every prompt, without leading and trailing blanks."""
    ids = generate(**inputs, **settings)
    if decoder_only:
        ids = ids[:, inputs["input_ids"].shape[1] :]
    return [decode(tokenizer, row).strip() for row in ids.tolist()]
