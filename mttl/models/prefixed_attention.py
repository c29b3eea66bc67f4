"""Attention that sees the prefixes of skilled layers: a function for transformers' interface."""

import sys
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from mttl.errors import ConfigError

NAME = "mttl_prefixed_"
PLAIN = "sdpa"


def read_prefixes(backbone: PreTrainedModel) -> None:
    """Let the attention of a model see prefixes, where layers hand it one.

    The text is attended to by the model's own function, with its sinks and soft caps.

    Args:
        backbone: The model; its choice of an attention function is changed.

    Raises:
        ConfigError: If it attends in another way that has no place for prefixes.
    """
    own: Any = backbone.config._attn_implementation
    if own in (PLAIN, "eager"):
        AttentionInterface.register(NAME + own, partial(attend, own))
        AttentionMaskInterface.register(NAME + own, AttentionMaskInterface()[own])
        backbone.set_attn_implementation(NAME + own)
    if not str(backbone.config._attn_implementation).startswith(NAME):
        raise ConfigError(
            f"prefixes need attention by transformers' interface, and '{PLAIN}' or 'eager' there "
            f"(backbone.config.attn_implementation); this {type(backbone).__name__} attends by "
            f"'{own}' in code of its own. Take another kind of skill, such as lora or ia3"
            if own in (PLAIN, "eager")
            else f"prefixes need backbone.config.attn_implementation ('{own}') to be '{PLAIN}' or "
            "'eager'; set it, or take another kind of skill"
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
    """Attend as the module does, and to a `Prefix` where there is one.

    Args:
        own: The implementation that the model would use: ``"sdpa"`` or ``"eager"``.
        module: The attention.
        query: Its queries.
        key: Its keys.
        value: Its values.
        attention_mask: What queries see.
        prefix: What they see besides.
        **settings: What transformers' function takes.
    """
    plain = AttentionInterface()[PLAIN]
    attends = plain
    if own == "eager":  # every file of transformers has a function of its own
        attends = sys.modules[type(module).__module__].eager_attention_forward
    if prefix is None:
        return attends(module, query, key, value, attention_mask, **settings)
    return prefix.attend(
        attends, module, query, key, value, attention_mask, alone=plain, **settings
    )
