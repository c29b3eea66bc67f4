"""Build a language model and its tokenizer from the section `backbone`."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mttl.config.backbone_schema import Backbone, Pretrained, RandomBackbone
from mttl.config.load import resolve_folder
from mttl.io.errors import ConfigError
from mttl.models.backbone import (
    BYTE_TOKENIZER,
    build_random,
    choose_trained,
    load_pretrained,
    load_tokenizer,
    new_architecture,
    read_architecture,
    scale_initial_weights,
)


def place_of(name: str) -> str:
    """Return the path of a folder, given or shipped; otherwise the name on the hub."""
    folder = resolve_folder(name)
    return str(folder) if folder.is_dir() and name != BYTE_TOKENIZER else name


def places_of(backbone: Backbone) -> dict[str, str]:
    """Return the absolute paths of folders that the section names, by setting."""
    names = {"name": getattr(backbone, "name", None), "tokenizer": backbone.tokenizer}
    given = {key: place_of(name) for key, name in names.items() if name}
    return {key: str(Path(place).resolve()) for key, place in given.items() if Path(place).is_dir()}


def found_again(backbone: Backbone, places: Mapping[str, str], run: Path) -> Backbone:
    """Return the section with its folders at their paths in training, unless found by name.

    ``places`` come from `places_of` in training, or are paths inside the run.
    """
    moved = {
        key: str(run / place)
        for key, place in places.items()
        if (run / place).is_dir()
        and not (Path(place).is_absolute() and Path(place_of(getattr(backbone, key))).is_dir())
    }
    return backbone.model_copy(update=moved)


def check_packable(backbone: Backbone, packed_length: int) -> None:
    """Raise a `ConfigError` for a model with an encoder, before weights are loaded."""
    if architecture(backbone)[0] is not transformers.AutoModelForCausalLM:
        raise ConfigError(
            f"data.packed_length ({packed_length}) needs a decoder-only backbone; use "
            "data.token_budget or data.length_window instead to reduce padding"
        )


def architecture(backbone: Backbone) -> tuple[Any, PretrainedConfig]:
    """Return the class and the configuration of a language model without reading weights."""
    if isinstance(backbone, RandomBackbone):
        return new_architecture(backbone.model_type, backbone.config)
    return read_architecture(place_of(backbone.name), **_version(backbone))


def _version(backbone: Pretrained) -> dict[str, Any]:
    return {"revision": backbone.revision, "gguf_file": backbone.gguf_file}


def build_tokenizer(backbone: Backbone) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a configuration."""
    if backbone.tokenizer is not None:
        return load_tokenizer(place_of(backbone.tokenizer))
    assert isinstance(backbone, Pretrained)
    return load_tokenizer(place_of(backbone.name), key="backbone.name", **_version(backbone))


def build_backbone(backbone: Backbone, *, empty: bool = False) -> PreTrainedModel:
    """Load or build the backbone, with its trained parameters unfrozen."""
    if isinstance(backbone, RandomBackbone):
        with torch.device("meta") if empty else nullcontext():
            model = build_random(backbone.model_type, backbone.config)
        scale_initial_weights(model, backbone.initial_scale)
    else:
        model = load_pretrained(
            place_of(backbone.name),
            **_version(backbone),
            dtype=backbone.dtype,
            quantize=backbone.quantize,
            train=bool(backbone.train),
            empty=empty,
        )
    choose_trained(model, backbone.train)
    return model


def check_vocabulary(
    backbone: Backbone, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    """Raise a `ConfigError` if the backbone has fewer embeddings than the tokenizer has tokens."""
    size = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
    n_tokens = len(tokenizer)
    if size < n_tokens:
        raise ConfigError(
            f"backbone.tokenizer ('{backbone.tokenizer or backbone.title}') has {n_tokens} tokens, "
            f"but the backbone '{backbone.title}' has embeddings for {size}. Use the tokenizer of "
            "the backbone, or more embeddings: backbone.config.vocab_size of a new backbone, or "
            "resize_token_embeddings of transformers"
        )
