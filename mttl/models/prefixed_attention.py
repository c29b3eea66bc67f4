"""Attention that sees the prefixes of skilled layers: a function for transformers' interface."""

import sys
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from mttl.io.errors import ConfigError

NAME = "mttl_prefixed_"
PLAIN = "sdpa"


def read_prefixes(backbone: PreTrainedModel) -> None:
    """Let the attention of a model see prefixes, where layers hand it one.

    The text is attended to by the model's own function, with its sinks and soft caps. A model that
    attends in a way that has no place for prefixes is a `ConfigError`.
    """
    own: Any = backbone.config._attn_implementation
    if own in (PLAIN, "eager"):
        AttentionInterface.register(NAME + own, partial(attend, own))
        AttentionMaskInterface.register(NAME + own, AttentionMaskInterface()[own])
        backbone.set_attn_implementation(NAME + own)
    if not str(backbone.config._attn_implementation).startswith(NAME):
        raise ConfigError(
            f"prefixes need backbone.config.attn_implementation ('{own}') to be '{PLAIN}' or "
            f"'eager', and by transformers' interface in a {type(backbone).__name__}; set it, or "
            "take another kind of skill, such as lora or ia3"
        )


def attend(
    own: str,
    module: nn.Module,
    query: Float[Tensor, "R A L d"],
    key: Float[Tensor, "R N S d"],
    value: Float[Tensor, "R N S e"],
    attention_mask: Tensor | None,
    *,
    prefix: Any = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as the module does, and to a `Prefix` where there is one."""
    plain = AttentionInterface()[PLAIN]
    file: Any = sys.modules[type(module).__module__]  # with a function of its own for "eager"
    attends = plain if own == PLAIN else file.eager_attention_forward
    if prefix is not None:
        attends, settings = partial(prefix.attend, attends), settings | {"alone": plain}
    return attends(module, query, key, value, attention_mask, **settings)
