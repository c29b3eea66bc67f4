"""Prefixes: keys and values that attention reads before those of the text.

The attention module computes queries, keys and values of the text, and passes them to an attention
function together with an `AttentionPrefix`, whose keys come first. So caches hold only the text,
rows may be repeated for beams, and positions do not change. The attention module must pass the
argument ``prefixes`` to that function, and the function must call `AttentionPrefix.attend`;
`mttl.models.prefixed_attention` provides both for transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import PositiveInt
from mttl.skills.inventory import NO_WEIGHTS, ONE_TEXT, Inventory, Merged, Weights, draw
from mttl.skills.skilled_layer import SkilledLayer, hidden_states, open_gates

# Parameters of the network that computes prefixes.
NETWORK = ("seeds", "inner", "inner_bias", "outer", "outer_bias")


class PrefixInventory(Inventory):
    r"""K prefixes of one attention: P keys and P values each.

    A task's prefix is :math:`\sum_k w_k P_k`. In prefix tuning every query attends to it and to the
    text in one softmax, :math:`\mathrm{softmax}(q [P^K; K]^\top / \sqrt d) [P^V; V]`, so that a
    fresh prefix already changes the output. A ``gated`` prefix has a separate softmax, and a gate
    per head that starts at 0 (zero-initialised attention of LLaMA-Adapter):
    :math:`\mathrm{Attn}(q, K, V) + \tanh(\sum_k w_k g_k)\,
    \mathrm{softmax}(q {P^K}^\top / \sqrt d) P^V`. `GatedInventory` adds a gate per token.

    P-tuning v2 calls prefixes in every layer deep prompts. They have no positions: neither rotary
    embeddings nor T5's bias. With a ``bottleneck``, a network of one tanh layer per skill and
    attention computes the prefix (the released code of prefix tuning has one for all layers) from
    vectors with as many features as keys, as in that code; the paper uses fewer. Only training
    needs the network; `drop_network` replaces it by its output.

    Args:
        in_features: Features of all keys of a token.
        out_features: Features of all values of a token.
        attention_heads: Query heads A.
        hidden_features: Features of the hidden states that the attention reads, by default those
            of keys; used only by a `GatedInventory` around the prefixes.
        length: Number of keys of a prefix.
        gated: Whether the prefix has a separate softmax and gates that start at 0; otherwise it
            shares the softmax of the text and cannot have a ``gate``.
        bottleneck: Hidden features of the network that computes the prefix; None keeps keys and
            values as parameters.
        n_heads: Heads H of the router: blocks of features with separate routing weights. A gate is
            mixed by the parts of its head that lie in each block.

    References:
        Li and Liang, *Prefix-Tuning: Optimizing Continuous Prompts for Generation*, ACL 2021,
        arXiv:2101.00190. Liu et al., *P-Tuning v2*, ACL 2022, arXiv:2110.07602. Zhang et al.,
        *LLaMA-Adapter*, ICLR 2024, arXiv:2303.16199.
    """

    internal = ("attention_heads", "hidden_features")
    lacks: ClassVar = {**NO_WEIGHTS, "packs": ONE_TEXT}
    attachment_point = "attention"
    cut_by_heads = ("in_features", "out_features")
    adapter_format = "PREFIX_TUNING"
    undecayed = ("gate", "inner_bias", "outer_bias")
    keys: nn.Parameter
    values: nn.Parameter
    gate: nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        attention_heads: int,
        hidden_features: int | None = None,
        *,
        length: PositiveInt = 10,
        gated: bool = True,
        bottleneck: PositiveInt | None = None,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.gate_features = in_features if hidden_features is None else hidden_features
        self.length, self.gated, self.bottleneck = length, gated, bottleneck
        self.neutral = gated
        shapes: dict[str, tuple[int, ...]] = {}
        if bottleneck is None:
            shapes |= {"keys": (in_features, length), "values": (out_features, length)}
        else:
            both = in_features + out_features
            inner, outer = (in_features, bottleneck), (bottleneck, both)
            sizes = (length, in_features), inner, (bottleneck,), outer, (both,)
            shapes |= zip(NETWORK, sizes, strict=True)
        if gated:
            shapes["gate"] = (attention_heads,)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(n_skills, *shape)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fan_in = {"inner": self.in_features, "outer": self.bottleneck or 1}
        for name, parameter in self.named_parameters():
            if name == "gate":
                nn.init.zeros_(parameter)
            elif name in ("keys", "values", "seeds"):
                nn.init.normal_(parameter)
            else:
                draw(parameter, "kaiming", fan_in[name.removesuffix("_bias")])

    def prefixes(self) -> tuple[Float[Tensor, "K I P"], Float[Tensor, "K O P"]]:
        """Return keys and values of every skill."""
        if self.bottleneck is None:
            return self.keys, self.values
        seeds, inner, inner_bias, outer, outer_bias = (self.get_parameter(n) for n in NETWORK)
        hidden = torch.baddbmm(inner_bias.unsqueeze(1), seeds, inner).tanh()
        both = torch.baddbmm(outer_bias.unsqueeze(1), hidden, outer).mT
        keys, values = both.split([self.in_features, self.out_features], dim=1)
        return keys, values

    @torch.no_grad()
    def drop_network(self) -> None:
        """Replace the network by the prefixes that it computes."""
        if self.bottleneck is None:
            return
        prefixes = dict(zip(("keys", "values"), self.prefixes(), strict=True))
        for name in NETWORK:
            delattr(self, name)
        for name, prefix in prefixes.items():
            self.register_parameter(name, nn.Parameter(prefix.clone()))
        self.bottleneck = None

    def merge(self, weights: Weights) -> Merged:
        """Return keys and values of each example, and the gates of its heads if any."""
        keys, values = (mix_blocks(stack, weights) for stack in self.prefixes())
        if not self.gated:
            return keys, values
        n_gates = self.gate.shape[1]
        if n_gates % self.n_heads:  # a head spans several blocks and is mixed by its parts
            parts = weights.repeat_interleave(n_gates, 1).unflatten(1, (n_gates, -1)).mean(2)
            return keys, values, torch.einsum("bak,ka->ba", parts, self.gate).tanh()
        return keys, values, mix_blocks(self.gate, weights).tanh()


Attended = tuple[Tensor, Tensor | None]


@dataclass
class AttentionPrefix:
    """The prefixes of the examples in one call of an attention."""

    keys: Float[Tensor, "B I P"]
    values: Float[Tensor, "B O P"]
    gates: Float[Tensor, "B A"] | None  # per head, for a separate softmax
    repeat: Callable[[Tensor, int], Tensor]  # repeats examples for their rows
    opened: Float[Tensor, "R L 1"] | None = None  # gates per token of a `GatedInventory`

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
        """Attend to the prefix and to the keys and values of the text.

        ``plain`` is an attention function of transformers, to which ``settings`` are passed. A may
        be a multiple of the N heads of keys. A mask is boolean or additive; None allows all keys,
        or is causal (by default as ``module`` declares). ``alone`` is the attention function for a
        prefix with a separate softmax, without sinks or caps; by default ``plain``.
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
            key, value = key[:, :, :length], value[:, :, :length]  # the rest is unused cache
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
        """Return prefixes repeated for the rows of each example, split into heads as ``like``."""
        rows = self.repeat(prefix, len(like)).to(like.dtype)
        return rows.unflatten(1, (like.shape[1], like.shape[3])).transpose(2, 3)


class SkilledAttention(SkilledLayer):
    """An attention module of the backbone with prefixes."""

    def forward(self, *args: Any, **settings: Any) -> Any:
        routing, (keys, values, *gates) = self.merge()
        prefix = AttentionPrefix(keys, values, gates[0] if gates else None, routing.repeat)
        if len(gates) > 1:  # gates of a `GatedInventory`, which reads the attention's input
            x = hidden_states(args, settings)
            opened = open_gates(routing.examples(x), *gates[1:])
            prefix.opened = opened.view(*x.shape[:2], 1)
        prefixes = (prefix, *settings.pop("prefixes", ()))
        return self.base(*args, prefixes=prefixes, **settings)
