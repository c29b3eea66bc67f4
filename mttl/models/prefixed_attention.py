"""Attention that sees the prefixes of skilled layers: a function for transformers' interface."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from mttl.errors import ConfigError

NAME = "mttl_prefixed"
PLAIN = "sdpa"


def read_prefixes(backbone: PreTrainedModel) -> None:
    """Let the attention of a model see prefixes, where layers hand it one.

    Attention without a prefix is PyTorch's (``sdpa``), as before.

    Args:
        backbone: The model; its choice of an attention function is changed.

    Raises:
        ConfigError: If it attends in another way that has no place for prefixes.
    """
    own = backbone.config._attn_implementation
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, AttentionMaskInterface()[PLAIN])
    if own in (PLAIN, "eager"):
        backbone.set_attn_implementation(NAME)
    if backbone.config._attn_implementation != NAME:
        raise ConfigError(
            f"prefixes need attention by transformers' interface, and '{PLAIN}' or 'eager' there; "
            f"this {type(backbone).__name__} attends by '{own}'. Set "
            f"backbone.config.attn_implementation to {PLAIN}, or take another kind of skill"
        )


def attend(
    module: nn.Module,
    query: Float[Tensor, "R A L d"],
    key: Float[Tensor, "R N S d"],
    value: Float[Tensor, "R N S e"],
    attention_mask: Tensor | None,
    *,
    prefix: Any = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as ``sdpa`` does, and to a `Prefix` where there is one.

    Args:
        module: The attention.
        query: Its queries.
        key: Its keys.
        value: Its values.
        attention_mask: What queries see.
        prefix: What they see besides.
        **settings: What transformers' function takes.
    """
    plain = AttentionInterface()[PLAIN]
    if prefix is None:
        return plain(module, query, key, value, attention_mask, **settings)
    return prefix.attend(plain, module, query, key, value, attention_mask, **settings)
