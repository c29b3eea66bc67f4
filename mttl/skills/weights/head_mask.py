"""Head masks: skills that weaken heads of attention, or switch them off."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.aggregation.products import active_dtype
from mttl.plugins.part_settings import Positive
from mttl.skills.inventory import Inventory, Merged, require_divisible


class HeadMaskInventory(Inventory):
    r"""K logits per head of attention; a gate from them multiplies what the head passes on.

    Michel et al. write :math:`\mathrm{MHAtt}(x) = \sum_h \xi_h \mathrm{Att}_h(x)` with
    :math:`\xi_h \in \{0, 1\}` and remove heads by :math:`|\partial L / \partial \xi_h|`. Here the
    :math:`\xi` of a task are learned: :math:`\xi_h = \sigma(z_h) / \sigma(s)` with
    :math:`z_h = s + \sum_k w_k d_{kh}`, or, where gates are ``hard``,
    :math:`\mathbb 1[\sigma(z_h) \ge 1/2]` with the slope of the former (straight-through). Each
    head's block of the output projection's input is multiplied by its gate. The logits are
    differences from s > 0, so that a fresh skill keeps every head as it is, for any weights.

    Args:
        in_features: Features I of the output projection's input.
        out_features: Features O of its output.
        n_skills: Skills K.
        attention_heads: Heads A of the attention; must divide I.
        hard: Keep a head or switch it off; else weaken or strengthen it.
        start: Logit of a fresh gate: how far it is from shut.
        n_heads: Heads H of the router: blocks of attention heads that are mixed apart; must
            divide A.

    Raises:
        ValueError: If a size is not positive or does not divide, or s is not positive.

    References:
        Michel, Levy and Neubig, *Are Sixteen Heads Really Better than One?*, NeurIPS 2019,
        arXiv:1905.10650.
    """

    internal = ("attention_heads",)
    uses = ("task",)
    attachment_point = "head"
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
        super().__init__(in_features, out_features, n_skills, n_heads)
        if start <= 0:
            raise ValueError(f"start ({start}) must be positive, or fresh gates were shut")
        if in_features % attention_heads:
            raise ValueError(
                f"attention_heads ({attention_heads}) must divide in_features ({in_features})"
            )
        require_divisible(n_heads, attention_heads=attention_heads)
        self.hard, self.start = hard, start
        self.logits = nn.Parameter(torch.zeros(n_skills, attention_heads))

    def reset_parameters(self) -> None:
        """Keep every head."""
        nn.init.zeros_(self.logits)

    def gates(self, weights: Float[Tensor, "B H K"]) -> Float[Tensor, "B A"]:
        """Return the gate of every head of attention for each example."""
        start = torch.full_like(self.logits[:1], self.start)
        logits = start + mix_blocks(self.logits, weights)
        soft = logits.sigmoid() / start.sigmoid()
        # In this order the sum is exact: 0 or 1.
        return soft + ((logits >= 0).to(soft) - soft).detach() if self.hard else soft

    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Return the factor of every input feature for each example."""
        gates = self.gates(weights)
        return (gates.repeat_interleave(self.in_features // gates.shape[1], dim=1),)

    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Refuse: gates act in front of the layer, where only `combine_linear` is.

        Raises:
            TypeError: Always.
        """
        raise TypeError("head masks change the layer's input: call combine_linear")

    def combine_linear(
        self, x: Float[Tensor, "B L I"], base: nn.Module, merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Compute the base layer from gated heads; it may be of any class."""
        dtype = active_dtype(x)
        return base(x.to(dtype) * merged[0].to(dtype).unsqueeze(1))

    def combine_segments(
        self, x: Float[Tensor, "N I"], base: nn.Module, merged: Merged, segments: Sequence[int]
    ) -> Float[Tensor, "N O"]:
        """Compute the base layer from tokens whose heads are gated as their example's."""
        lengths = torch.tensor(segments, device=x.device)
        factors = merged[0].repeat_interleave(lengths, dim=0, output_size=len(x))
        return self.combine_linear(x.unsqueeze(1), base, (factors,)).squeeze(1)

    def fold(
        self,
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, "O"] | None,
        weights: Float[Tensor, "H K"],
    ) -> tuple[Float[Tensor, "O I"], Float[Tensor, "O"] | None]:
        """Return the weight with each head's columns multiplied by its gate, and the bias."""
        return weight * self.merge(weights[None])[0], bias

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        heads = f"attention_heads={self.logits.shape[1]}"
        return f"{super().extra_repr()}, {heads}, hard={self.hard}, start={self.start:g}"
