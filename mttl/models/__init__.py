"""Language models that skills are put on."""

from mttl.models.backbone import (
    build_random,
    is_decoder_only,
    load_pretrained,
    load_tokenizer,
    scale_initial_weights,
)

__all__ = [
    "build_random",
    "is_decoder_only",
    "load_pretrained",
    "load_tokenizer",
    "scale_initial_weights",
]
