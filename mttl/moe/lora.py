"""Low-rank experts: a change of a linear layer per expert."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.grouped import grouped_linear
from mttl.moe.experts import Experts
from mttl.routing.token.dispatch import combine, gate_matrix, sort_by_expert
from mttl.routing.token.token_router import Assignment
from mttl.skills.inventory import active_dtype


class LoRAExperts(Experts):
    r"""Low-rank changes of a linear layer: :math:`\sum_e g_e\, s\, B_e A_e^\top x`.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_experts: Experts E.
        rank: Rank r of each expert.
        scale: The factor s; 1 / rank by default.

    Raises:
        ValueError: If a size is not positive.

    References:
        Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022,
        arXiv:2106.09685. As experts: Zadouri et al., *Pushing Mixture of Experts to the Limit*,
        ICLR 2024, arXiv:2309.05444.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_experts: int,
        *,
        rank: int = 16,
        scale: float | None = None,
    ) -> None:
        super().__init__(in_features, out_features, n_experts)
        if rank < 1:
            raise ValueError(f"rank ({rank}) must be at least 1")
        self.rank = rank
        self.scale = 1 / rank if scale is None else scale
        self.down = nn.Parameter(torch.empty(n_experts, in_features, rank))
        self.up = nn.Parameter(torch.empty(n_experts, out_features, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the input side as `nn.Linear` does and set the output side to 0: no change yet."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.down, -bound, bound)
        nn.init.zeros_(self.up)

    def forward(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        """Return, for each token, the sum over its pairs of gate times low-rank change."""
        if self.n_experts * self.rank <= self.in_features:
            return self._all_at_once(x, assignment)
        work = sort_by_expert(assignment)
        hidden = grouped_linear(x[work.tokens], self.down.mT, None, work.counts)
        y = grouped_linear(self.scale * hidden, self.up, None, work.counts)
        return combine(y, work, len(x))

    def _all_at_once(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        """Give all tokens to all experts and set what was not chosen to 0.

        Two products of full width are the faster while they are no wider than the layer itself.
        """
        down = self.down.transpose(0, 1).flatten(1)  # (I, E r)
        up = self.up.transpose(1, 2).flatten(0, 1)  # (E r, O)
        dtype = active_dtype(x)
        gates = self.scale * gate_matrix(assignment).to(dtype)
        hidden = (x.to(dtype) @ down.to(dtype)).unflatten(1, (self.n_experts, self.rank))
        return (hidden * gates[:, :, None]).flatten(1) @ up.to(dtype)
