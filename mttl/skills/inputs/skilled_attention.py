"""Attention of the backbone together with the prefixes that it sees.

The module computes queries, keys and values as ever, cache and positions included, and hands them
to the function that attends; an `AttentionPrefix` goes there with the call and is put in front of
the keys. So a cache holds the text alone, rows may be repeated for beams, and no position moves.
The library of the backbone has to pass the argument ``prefix`` on to that function, and the
function has to call `AttentionPrefix.attend`; for transformers `mttl.models.prefixed_attention`
sees to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from mttl.skills.skilled_layer import SkilledLayer, hidden_states, open_gates

Attended = tuple[Tensor, Tensor | None]


@dataclass
class AttentionPrefix:
    """What one call of an attention sees beside the text.

    Attributes:
        keys: Of each example, shape (B, features, P).
        values: Of each example.
        gates: Of each example and head, shape (B, A), where the prefix has a softmax of its own.
        repeat: Repeats what belongs to examples for their rows.
        opened: How far each token lets it in, where a `GatedInventory` holds it, shape (R, L, 1).
    """

    keys: Float[Tensor, "B I P"]
    values: Float[Tensor, "B O P"]
    gates: Float[Tensor, "B A"] | None
    repeat: Callable[[Tensor, int], Tensor]
    opened: Float[Tensor, "R L 1"] | None = None

    def attend(
        self,
        plain: Callable[..., Attended],
        module: nn.Module,
        query: Float[Tensor, "R A L d"],
        key: Float[Tensor, "R N S d"],
        value: Float[Tensor, "R N S e"],
        mask: Tensor | None,
        *,
        position_bias: Float[Tensor, "_ A L S"] | None = None,
        is_causal: bool | None = None,
        alone: Callable[..., Attended] | None = None,
        **settings: Any,
    ) -> Attended:
        """Attend to the prefix too.

        Args:
            plain: Attends to keys and values alone, as transformers' functions do.
            module: The attention.
            query: Its queries.
            key: Keys of the text; A may be a multiple of their N heads.
            value: Values of the text.
            mask: What queries see, as truth values or added to scores; None for all, or what is
                not ahead.
            position_bias: Added to the scores.
            is_causal: Whether no mask means what is not ahead; by default as ``module`` says.
            alone: Attends to a prefix that has a softmax of its own, without sinks or caps; by
                default ``plain``.
            **settings: What else ``plain`` takes.
        """
        keys, values = self._heads(self.keys, key), self._heads(self.values, value)
        if self.gates is not None:
            given = {"position_bias": position_bias, "is_causal": is_causal}
            y, weights = plain(module, query, key, value, mask, **given, **settings)
            settings |= {"dropout": 0.0, "softcap": None}
            attends = alone or plain
            own, _ = attends(module, query, keys, values, None, is_causal=False, **settings)
            gates = self.repeat(self.gates, len(query))[:, None]
            if self.opened is not None:
                gates = gates * self.opened
            return y + gates[..., None].to(y.dtype) * own, weights
        length = query.shape[2]
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if mask is None and causal and length > 1:
            key, value = key[:, :, :length], value[:, :, :length]  # the rest of a cache is empty
            mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
            mask = mask[None, None]
        if mask is not None:
            mask = pad(mask, (keys.shape[2], 0), value=mask.dtype == torch.bool)
        if position_bias is not None:
            position_bias = pad(position_bias, (keys.shape[2], 0))
        key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        given = {"position_bias": position_bias, "is_causal": False}
        return plain(module, query, key, value, mask, **given, **settings)

    def _heads(self, prefix: Tensor, like: Tensor) -> Tensor:
        """Return an example's prefix for each of its rows, as heads of the shape of ``like``."""
        rows = self.repeat(prefix, len(like)).to(like.dtype)
        return rows.unflatten(1, (like.shape[1], like.shape[3])).transpose(2, 3)


class SkilledAttention(SkilledLayer):
    """An attention module of the backbone, its inventory of prefixes, and its routing."""

    def forward(self, *args: Any, **settings: Any) -> Any:
        routing, merged = self.merge(packed=False)
        keys, values, *gates = merged
        prefix = AttentionPrefix(keys, values, gates[0] if gates else None, routing.repeat)
        if len(gates) > 1:  # those of a `GatedInventory`, which reads what the attention reads
            x = hidden_states(args, settings)
            opened = open_gates(routing.examples(x), *gates[1:])
            prefix.opened = opened.view(*x.shape[:2], 1)
        return self.base(*args, prefix=prefix, **settings)
