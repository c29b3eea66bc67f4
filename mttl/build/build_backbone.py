"""From the section `backbone` to a language model and its tokenizer."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mttl.config.backbone_schema import Backbone
from mttl.config.load import resolve_folder
from mttl.errors import ConfigError
from mttl.models.backbone import (
    build_random,
    load_pretrained,
    load_tokenizer,
    scale_initial_weights,
)


def backbone_name(backbone: Backbone) -> str:
    """Return what to call a backbone."""
    return backbone.name if backbone.kind == "pretrained" else f"random {backbone.model_type}"


def place_of(name: str) -> str:
    """Return the path of a folder, as given or beside ``configs/``; else the name of the hub."""
    folder = resolve_folder(name)
    return str(folder) if folder.is_dir() else name


def build_tokenizer(backbone: Backbone) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the configuration names."""
    if backbone.kind == "random":
        return load_tokenizer(backbone.tokenizer)
    if backbone.tokenizer is not None:
        return load_tokenizer(place_of(backbone.tokenizer))
    name = place_of(backbone.name)
    return load_tokenizer(name, revision=backbone.revision, gguf_file=backbone.gguf_file)


def build_backbone(backbone: Backbone) -> PreTrainedModel:
    """Load or build the backbone; frozen unless it is trained too."""
    if backbone.kind == "random":
        model = build_random(backbone.model_type, dict(backbone.config))
        scale_initial_weights(model, backbone.initial_scale)
    else:
        model = load_pretrained(
            place_of(backbone.name),
            revision=backbone.revision,
            gguf_file=backbone.gguf_file,
            dtype=backbone.dtype,
        )
    model.requires_grad_(backbone.train)
    return model


def check_vocabulary(name: str, n_tokens: int, model: PreTrainedModel) -> None:
    """Refuse a backbone that has fewer embeddings than its tokenizer has tokens."""
    size = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
    if size < n_tokens:
        raise ConfigError(
            f"backbone.config.vocab_size ({size}) must be at least {n_tokens}, the number of "
            f"tokens of the tokenizer '{name}'"
        )
