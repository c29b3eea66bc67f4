"""Multiplicative skills: one scale per output feature."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.routing.token.choice import Assignment, gate_matrix
from mttl.skills.inventory import Inputs, Merged, Outputs, Weights, ZeroInventory


class IA3Inventory(ZeroInventory):
    r"""Skills that rescale a layer's output: :math:`y' = y \odot (1 + \sum_k w_k d_k)`.

    The parameters are differences from 1, so that a fresh skill changes nothing for any weights;
    for weights that sum to 1 this is the mixture of the scales.

    References:
        Liu et al., *Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context
        Learning*, NeurIPS 2022, arXiv:2205.05638. As experts: Zadouri et al., *Pushing Mixture of
        Experts to the Limit*, ICLR 2024, arXiv:2309.05444.
    """

    lacks: ClassVar = {"policies": "it rescales outputs of layers; set {path}.kind: adapter"}
    uses = ("task", "token")
    reads = "output"
    adapter_format = "IA3"
    undecayed = ("difference",)

    def __init__(
        self, in_features: int, out_features: int, n_skills: int, *, n_heads: int = 1
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.difference = nn.Parameter(torch.zeros(n_skills, out_features))

    def merge(self, weights: Weights) -> Merged:
        return (1 + mix_blocks(self.difference, weights),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        return y * merged[0].to(active_dtype(y)).unsqueeze(1)

    def dispatch(self, x: Float[Tensor, "N O"], assignment: Assignment) -> Float[Tensor, "N O"]:
        dtype = active_dtype(x)
        return x * (gate_matrix(assignment).to(dtype) @ self.difference.to(dtype))

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        scale = self.merge(weights[None])[0][0]
        return scale[:, None] * weight, None if bias is None else scale * bias
