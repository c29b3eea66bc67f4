"""Supermasks: skills that mask weights of the frozen layer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.aggregation.packed_weights import dense_weight
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights

START = 1e-2


class SupermaskInventory(Inventory):
    r"""K scores per weight; weights whose mixed score reaches the threshold are kept.

    :math:`y = (W_0 \odot b)\,x` with :math:`b = \mathbb 1[\sum_k w_k S_k \ge \tau]`. Scores are
    mixed before the comparison, so a task always has a binary mask, a subnetwork of the frozen
    layer. Gradients pass through the comparison unchanged (straight-through). The layer's bias
    does not change.

    Scores start at 0.01, so a fresh skill changes nothing for weights that sum to 1 and a threshold
    below 0.01. The number of parameters is that of dense skills.

    Args:
        threshold: Smallest score of a kept weight; scores start at 0.01.

    References:
        Mallya, Davis and Lazebnik, *Piggyback: Adapting a Single Network to Multiple Tasks by
        Learning to Mask Weights*, ECCV 2018, arXiv:1801.06519. Wortsman et al., *Supermasks in
        Superposition*, NeurIPS 2020, arXiv:2006.14769.
    """

    reads_weight = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        threshold: float = 5e-3,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.threshold = threshold
        self.scores = nn.Parameter(torch.empty(n_skills, out_features, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scores, START)

    def merge(self, weights: Weights) -> Merged:
        scores = mix_blocks(self.scores, weights)
        # The difference is 0, with the gradient of the scores.
        return ((scores - scores.detach()).add_(scores >= self.threshold),)

    def combine_linear(self, x: Inputs, base: nn.Linear, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        masked = dense_weight(base).to(dtype) * merged[0].to(dtype)
        return linear_of_each(x, masked, base.bias)

    def fold(
        self, weight: Tensor, bias: Tensor | None, weights: Float[Tensor, "H K"]
    ) -> tuple[Tensor, Tensor | None]:
        return weight * self.merge(weights[None])[0][0], bias


def linear_of_each(x: Inputs, weights: Float[Tensor, "B O I"], bias: Tensor | None) -> Outputs:
    """Return the output of a linear layer whose weight differs by example."""
    dtype = active_dtype(x)
    y = torch.bmm(x.to(dtype), weights.to(dtype).mT)
    return y if bias is None else y + bias.to(dtype)
