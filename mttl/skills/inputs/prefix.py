"""Prefixes: keys and values that attention sees in front of the text."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import PositiveInt
from mttl.skills.inventory import NO_WEIGHTS, ONE_TEXT, Inventory, Merged, Weights, draw


class PrefixInventory(Inventory):
    r"""K prefixes of one attention: P keys and P values each.

    A task's prefix is :math:`\sum_k w_k P_k`. In prefix tuning every query attends to it and to the
    text in one softmax, :math:`\mathrm{softmax}(q [P^K; K]^\top / \sqrt d) [P^V; V]`. Such a prefix
    takes attention from the text whatever is in it, so that no fresh one changes nothing. Where it
    is ``gated``, it has a softmax of its own and a gate per head that starts at 0 (zero-initialised
    attention of LLaMA-Adapter): :math:`\mathrm{Attn}(q, K, V) + \tanh(\sum_k w_k g_k)\,
    \mathrm{softmax}(q {P^K}^\top / \sqrt d) P^V`. `GatedInventory` lets every token weaken that by
    a gate of its own.

    A prefix in every layer is what P-tuning v2 calls deep prompts. It has no positions: neither a
    rotation nor T5's bias. With a ``bottleneck`` it is computed by a network of one tanh layer per
    skill and attention (the released code of prefix tuning has one for all layers), from vectors of
    as many features as keys have, as that code does; in the paper these are fewer. Training alone
    needs the network, and `drop_network` keeps what it computes.

    Args:
        in_features: Features of all keys of a token.
        out_features: Features of all values of a token.
        attention_heads: Heads A that ask.
        hidden_features: Features of the hidden states that the attention reads, by default as many
            as of keys; only a `GatedInventory` around the prefixes needs them.
        length: Keys of a prefix.
        gated: A softmax of its own, and gates that start at 0; else one softmax with the text,
            which takes no ``gate``.
        bottleneck: Hidden features of a network that computes the prefix; by default it is kept
            plain.
        n_heads: Heads H of the router: blocks of features that are mixed apart. A gate is mixed by
            the parts of its head that lie in each block.

    References:
        Li and Liang, *Prefix-Tuning: Optimizing Continuous Prompts for Generation*, ACL 2021,
        arXiv:2101.00190. Liu et al., *P-Tuning v2*, ACL 2022, arXiv:2110.07602. Zhang et al.,
        *LLaMA-Adapter*, ICLR 2024, arXiv:2303.16199.
    """

    internal = ("attention_heads", "hidden_features")
    lacks: ClassVar = {**NO_WEIGHTS, "packs": ONE_TEXT}
    attachment_point = "attention"
    cut_by_heads = ("in_features", "out_features")
    undecayed = ("gate", "inner_bias", "outer_bias")
    keys: nn.Parameter
    values: nn.Parameter
    seeds: nn.Parameter
    inner: nn.Parameter
    inner_bias: nn.Parameter
    outer: nn.Parameter
    outer_bias: nn.Parameter
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
        both = in_features + out_features
        shapes: dict[str, tuple[int, ...]] = {
            "keys": (in_features, length),
            "values": (out_features, length),
        }
        if bottleneck is not None:
            shapes = {
                "seeds": (length, in_features),
                "inner": (in_features, bottleneck),
                "inner_bias": (bottleneck,),
                "outer": (bottleneck, both),
                "outer_bias": (both,),
            }
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
        hidden = torch.baddbmm(self.inner_bias.unsqueeze(1), self.seeds, self.inner).tanh()
        both = torch.baddbmm(self.outer_bias.unsqueeze(1), hidden, self.outer).mT
        keys, values = both.split([self.in_features, self.out_features], dim=1)
        return keys, values

    @torch.no_grad()
    def drop_network(self) -> None:
        """Keep the prefixes that a network computes, in its place."""
        if self.bottleneck is None:
            return
        prefixes = dict(zip(("keys", "values"), self.prefixes(), strict=True))
        for name in ("seeds", "inner", "inner_bias", "outer", "outer_bias"):
            delattr(self, name)
        for name, prefix in prefixes.items():
            self.register_parameter(name, nn.Parameter(prefix.clone()))
        self.bottleneck = None

    def merge(self, weights: Weights) -> Merged:
        """Return keys and values of each example, and the gates of its heads if it has them."""
        keys, values = (mix_blocks(stack, weights) for stack in self.prefixes())
        if not self.gated:
            return keys, values
        n_gates = self.gate.shape[1]
        if n_gates % self.n_heads:  # a head of attention lies in several blocks: by its parts
            parts = weights.repeat_interleave(n_gates, 1).unflatten(1, (n_gates, -1)).mean(2)
            return keys, values, torch.einsum("bak,ka->ba", parts, self.gate).tanh()
        return keys, values, mix_blocks(self.gate, weights).tanh()
