"""Attention functions with prefixes, for the attention interface of transformers."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from mttl.io.errors import ConfigError

NAME = "mttl_prefixed_"
PLAIN = "sdpa"


def read_prefixes(backbone: PreTrainedModel) -> None:
    """Set an attention function of a model that reads prefixes of skilled layers.

    The model's own function, with its sinks and soft caps, still processes the text. Raises
    ConfigError if the model's attention does not support prefixes.
    """
    own: Any = backbone.config._attn_implementation
    if own in (PLAIN, "eager"):
        AttentionInterface.register(NAME + own, partial(attend, own))
        AttentionMaskInterface.register(NAME + own, AttentionMaskInterface()[own])
        backbone.set_attn_implementation(NAME + own)
    if not str(backbone.config._attn_implementation).startswith(NAME):
        raise ConfigError(
            f"prefixes need backbone.config.attn_implementation ('{own}') to be '{PLAIN}' or "
            f"'eager', and {type(backbone).__name__} to use transformers' attention interface; set "
            "it, or use another kind of skill, such as lora or ia3"
        )


def attend(
    own: str,
    module: nn.Module,
    query: Float[Tensor, "R A L d"],
    key: Float[Tensor, "R N S d"],
    value: Float[Tensor, "R N S e"],
    attention_mask: Tensor | None,
    *,
    prefixes: Sequence[Any] = (),
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention of a module, including its `AttentionPrefix`es."""
    plain = AttentionInterface()[PLAIN]
    file: Any = sys.modules[type(module).__module__]  # has the function for "eager"
    attends = plain if own == PLAIN else file.eager_attention_forward
    for prefix in prefixes:
        attends = partial(prefix.attend, attends, alone=plain)
    return attends(module, query, key, value, attention_mask, **settings)
