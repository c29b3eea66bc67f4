"""Head masks: skills that scale attention heads or switch them off."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import Positive
from mttl.skills.inventory import Inputs, Merged, Outputs, Weights, ZeroInventory


class HeadMaskInventory(ZeroInventory):
    r"""K logits per attention head, whose gate multiplies the head's output.

    Michel et al. write :math:`\mathrm{MHAtt}(x) = \sum_h \xi_h \mathrm{Att}_h(x)` with
    :math:`\xi_h \in \{0, 1\}` and remove heads by :math:`|\partial L / \partial \xi_h|`. Here the
    :math:`\xi` of a task are learned: :math:`\xi_h = \sigma(z_h) / \sigma(s)` with
    :math:`z_h = s + \sum_k w_k d_{kh}`, or, with ``hard``,
    :math:`\mathbb 1[\sigma(z_h) \ge 1/2]` with the gradient of the former (straight-through). The
    gate multiplies the head's block of the output projection's input. The logits are differences
    from s > 0, so that a fresh skill keeps every head, for any weights.

    Args:
        attention_heads: Attention heads A; must divide I.
        hard: Whether gates are 0 or 1; otherwise they scale a head.
        start: Initial logit of the gates.
        n_heads: Heads H of the router: blocks of attention heads with separate routing weights.

    References:
        Michel, Levy and Neubig, *Are Sixteen Heads Really Better than One?*, NeurIPS 2019,
        arXiv:1905.10650.
    """

    internal = ("attention_heads",)
    attachment_point = "head"
    cut_by_heads = ("attention_heads",)
    changes_input = True
    undecayed = ("logits",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        attention_heads: int,
        *,
        hard: bool = True,
        start: Positive = 1.0,
        n_heads: int = 1,
    ) -> None:
        self.attention_heads = attention_heads
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.hard, self.start = hard, start
        self.logits = nn.Parameter(torch.zeros(n_skills, attention_heads))

    def gates(self, weights: Weights) -> Float[Tensor, "B A"]:
        """Return the gate of every attention head for each example."""
        start = torch.full_like(self.logits[:1], self.start)
        logits = start + mix_blocks(self.logits, weights)
        soft = logits.sigmoid() / start.sigmoid()
        # This order of operations gives exactly 0 or 1.
        return soft + ((logits >= 0).to(soft) - soft).detach() if self.hard else soft

    def merge(self, weights: Weights) -> Merged:
        gates = self.gates(weights)
        return (gates.repeat_interleave(self.in_features // gates.shape[1], dim=1),)

    def combine_linear(self, x: Inputs, base: nn.Module, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        return base(x.to(dtype) * merged[0].to(dtype).unsqueeze(1))

    def combine_segments(
        self, x: Float[Tensor, "N I"], base: nn.Module, merged: Merged, segments: Sequence[int]
    ) -> Float[Tensor, "N O"]:
        lengths = torch.tensor(segments, device=x.device)
        factors = merged[0].repeat_interleave(lengths, dim=0, output_size=len(x))
        return self.combine_linear(x.unsqueeze(1), base, (factors,)).squeeze(1)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        return weight * self.merge(weights[None])[0], bias
