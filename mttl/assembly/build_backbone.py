"""From the section `backbone` to a language model and its tokenizer."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase

from mttl.config.backbone_schema import Backbone
from mttl.config.load import resolve_folder
from mttl.io.errors import ConfigError, nearest
from mttl.models.backbone import (
    BYTE_TOKENIZER,
    build_random,
    load_pretrained,
    load_tokenizer,
    read_architecture,
    scale_initial_weights,
)
from mttl.models.quantised import check_quantisation


def backbone_name(backbone: Backbone) -> str:
    """Return what to call a backbone."""
    return backbone.name if backbone.kind == "pretrained" else f"random {backbone.model_type}"


def place_of(name: str) -> str:
    """Return the path of a folder, as given or as it is shipped; else the name of the hub."""
    folder = resolve_folder(name)
    return str(folder) if folder.is_dir() else name


def places_of(backbone: Backbone) -> dict[str, str]:
    """Return where the folders lie that the section names, by setting."""
    names = {"name": getattr(backbone, "name", None), "tokenizer": backbone.tokenizer}
    given = {key: place_of(name) for key, name in names.items() if name and name != BYTE_TOKENIZER}
    return {key: str(Path(place).resolve()) for key, place in given.items() if Path(place).is_dir()}


def found_again(backbone: Backbone, places: Mapping[str, str], run: Path) -> Backbone:
    """Return the section with folders where they were in training, unless they are found as named.

    Args:
        backbone: The section of a run, which may be used from another directory.
        places: What `places_of` returned in training; or paths inside the run, which has its own.
        run: The folder of the run.
    """
    moved = {
        key: str(run / place)
        for key, place in places.items()
        if (run / place).is_dir()
        and not (Path(place).is_absolute() and Path(place_of(getattr(backbone, key))).is_dir())
    }
    return backbone.model_copy(update=moved)


def check_backbone(backbone: Backbone) -> None:
    """Refuse, before anything is loaded, a backbone that cannot be had here.

    Raises:
        ConfigError: If it is to be quantised, and a library is missing.
    """
    if backbone.kind == "pretrained" and backbone.quantize is not None:
        check_quantisation(backbone.quantize)


def check_packable(backbone: Backbone, packed_length: int) -> None:
    """Refuse, before anything is loaded, a backbone whose rows cannot share a sequence.

    Raises:
        ConfigError: If it has an encoder.
    """
    if has_encoder(backbone):
        raise ConfigError(
            f"data.packed_length ({packed_length}) is for decoder-only backbones; this one reads "
            "inputs in an encoder, whose rows cannot share a sequence. Leave it out; "
            "data.token_budget and data.length_window save padding too"
        )


def has_encoder(backbone: Backbone) -> bool:
    """Tell whether a backbone reads inputs in an encoder; no weights are read.

    Raises:
        ConfigError: If what describes a pretrained one cannot be had.
    """
    if backbone.kind == "random":
        if backbone.model_type not in CONFIG_MAPPING:  # reported where it is built
            return False
        return bool(CONFIG_MAPPING[backbone.model_type]().is_encoder_decoder)
    where = {"revision": backbone.revision, "gguf_file": backbone.gguf_file}
    return bool(read_architecture(place_of(backbone.name), **where)[1].is_encoder_decoder)


def build_tokenizer(backbone: Backbone) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the configuration names."""
    if backbone.kind == "random":
        return load_tokenizer(backbone.tokenizer)
    if backbone.tokenizer is not None:
        return load_tokenizer(place_of(backbone.tokenizer))
    name = place_of(backbone.name)
    where = {"revision": backbone.revision, "gguf_file": backbone.gguf_file}
    return load_tokenizer(name, key="backbone.name", **where)


def build_backbone(backbone: Backbone, *, empty: bool = False) -> PreTrainedModel:
    """Load or build the backbone; frozen unless it is trained too."""
    if backbone.kind == "random":
        with torch.device("meta") if empty else nullcontext():
            model = build_random(backbone.model_type, dict(backbone.config))
        scale_initial_weights(model, backbone.initial_scale)
    else:
        model = load_pretrained(
            place_of(backbone.name),
            revision=backbone.revision,
            gguf_file=backbone.gguf_file,
            dtype=backbone.dtype,
            quantize=backbone.quantize,
            train=bool(backbone.train),
            empty=empty,
        )
    choose_trained(model, backbone.train)
    return model


def choose_trained(model: nn.Module, train: bool | Sequence[str]) -> None:
    """Let gradients reach the parameters of a backbone that are trained.

    Args:
        model: The backbone.
        train: All, none, or patterns with ``*`` and ``?`` that match the end of a name.

    Raises:
        ConfigError: If a pattern matches no parameter; the message names near ones.
    """
    if isinstance(train, bool):
        model.requires_grad_(train)
        return
    model.requires_grad_(False)
    named = dict(model.named_parameters())
    for pattern in train:
        found = [name for name in named if fnmatchcase(f".{name}", f"*.{pattern}")]
        if not found:
            raise ConfigError(
                f"backbone.train: '{pattern}' matches no parameter of the backbone."
                f"{nearest(pattern, named)} Patterns match the ends of names, such as "
                f"'{next(iter(named))}'"
            )
        for name in found:
            named[name].requires_grad_(True)


def check_vocabulary(
    backbone: Backbone, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    """Refuse a backbone that has fewer embeddings than its tokenizer has tokens."""
    size = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
    n_tokens = len(tokenizer)
    if size >= n_tokens:
        return
    if backbone.kind == "random":
        raise ConfigError(
            f"backbone.config.vocab_size ({size}) must be at least {n_tokens}, the number of "
            f"tokens of the tokenizer '{backbone.tokenizer}'"
        )
    raise ConfigError(
        f"backbone.tokenizer ('{backbone.tokenizer or backbone.name}') has {n_tokens} tokens, and "
        f"the backbone '{backbone.name}' embeddings for {size}; it must have at most as many. Name "
        "the tokenizer that the backbone was trained with, or give the backbone more embeddings "
        "(resize_token_embeddings of transformers) and save both in one folder"
    )
