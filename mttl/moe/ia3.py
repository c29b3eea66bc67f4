"""Multiplicative experts: one scale per output feature of the module they augment."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.moe.experts import Experts
from mttl.routing.token.dispatch import gate_matrix
from mttl.routing.token.token_router import Assignment
from mttl.skills.inventory import active_dtype


class IA3Experts(Experts):
    r"""Vectors that rescale a module's output: what is added is :math:`y \odot \sum_e g_e d_e`.

    The vectors are stored as differences from 1, so that fresh experts change nothing.

    Args:
        in_features: Features of the module's input; not used.
        out_features: Features O of its output.
        n_experts: Experts E.

    Raises:
        ValueError: If a size is not positive.

    References:
        Liu et al., *Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context
        Learning*, NeurIPS 2022, arXiv:2205.05638. As experts: Zadouri et al., *Pushing Mixture of
        Experts to the Limit*, ICLR 2024, arXiv:2309.05444.
    """

    reads = "output"

    def __init__(self, in_features: int, out_features: int, n_experts: int) -> None:
        super().__init__(in_features, out_features, n_experts)
        self.difference = nn.Parameter(torch.zeros(n_experts, out_features))

    def reset_parameters(self) -> None:
        """Set all scales to 1."""
        nn.init.zeros_(self.difference)

    def forward(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        """Return what is added to the module's output ``x``."""
        dtype = active_dtype(x)
        return x * (gate_matrix(assignment).to(dtype) @ self.difference.to(dtype))
