"""Gated skills: a learned gate scales their change at every token."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.skills.inputs.prefix import PrefixInventory
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs
from mttl.skills.skilled_layer import open_gates


class GatedInventory(Inventory):
    r"""Skills whose change is multiplied by a learned gate: :math:`y + g(x)\,(y' - y)`.

    :math:`g(x) = \sigma(v^\top x + c)` reads the layer's input at the same token; :math:`y'` is
    the output y as the skills change it. Each skill has its gate, :math:`v_k` and :math:`c_k`,
    which are averaged by the mixing weights and start half open.

    A prefix changes the output of every attention head before the output projection:
    :math:`\mathrm{Attn}(q, K, V) + g(h) \tanh(\sum_k w_k g_k)\,
    \mathrm{softmax}(q {P^K}^\top / \sqrt d) P^V`, with h the hidden state of the query's token. It
    must have a separate softmax (``gated``).

    UniPELT's code averages g over the tokens of an example. Here every token has its own value, so
    that it does not depend on later tokens, and generation can use a cache.

    Args:
        skills: Skills that change a layer's output, or gated prefixes.

    Raises:
        ValueError: If the skills act elsewhere, or are prefixes without a separate softmax.

    References:
        Mao, Mathias, Hou, Almahairi, Ma, Han, Yih and Khabsa, *UniPELT: A Unified Framework for
        Parameter-Efficient Language Model Tuning*, ACL 2022, arXiv:2110.07577.
    """

    undecayed = ("bias",)
    no_weight = "a gate depends on the token, and a weight does not"

    def __init__(self, skills: Inventory) -> None:
        super().__init__(skills.in_features, skills.out_features, skills.n_skills)
        skills.require_use("task")
        adds = skills.attachment_point in ("linear", "block") and not skills.reads_weight
        if not (skills.gated if isinstance(skills, PrefixInventory) else adds):
            raise ValueError(
                f"gate must be false for {type(skills).__name__}; gates are for kinds that add to "
                "an output (lora, adapter, krona …), and for prefixes with gated: true"
            )
        self.skills = skills
        self.common_parameters = tuple(f"skills.{name}" for name in skills.common_parameters)
        self.weight = nn.Parameter(torch.zeros(skills.n_skills, skills.gate_features))
        self.bias = nn.Parameter(torch.zeros(skills.n_skills, 1))

    def reset_parameters(self) -> None:
        self.skills.reset_parameters()
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def set_path(self, path: str) -> None:
        self.skills.set_path(path)

    def init_from_base(self, base: nn.Module) -> None:
        self.skills.init_from_base(base)

    def tie_to(self, first: Any) -> None:
        self.skills.tie_to(first.skills)

    def merge(self, weights: Float[Tensor, "B 1 K"]) -> Merged:
        gate = mix_blocks(self.weight, weights), mix_blocks(self.bias, weights)
        return *self.skills.merge(weights), *gate

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        *skills, weight, bias = merged
        changed = self.skills.combine(x, y, tuple(skills))
        opened = open_gates(x, weight, bias)
        return torch.lerp(y.to(changed.dtype), changed, opened.to(changed.dtype))

    def penalties(self) -> dict[str, Tensor]:
        return self.skills.penalties()

    def facts(self) -> dict[str, Tensor]:
        return self.skills.facts()
