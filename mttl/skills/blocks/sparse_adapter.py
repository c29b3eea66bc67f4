"""Sparse adapters: wide bottlenecks of which most entries are pruned before training."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.plugins.part_settings import Fraction, PositiveInt
from mttl.skills.blocks.adapter import BottleneckInventory, Projections, averaged
from mttl.skills.weights.supports import random_support, spread


class SparseAdapterInventory(BottleneckInventory):
    r"""K adapters whose two projections are 0 but for few entries, drawn for each skill.

    Only the values of these entries are parameters, so that a bottleneck may be as many times as
    wide as its entries are few, for the same number of them (Large-Sparse). Biases are whole.

    The release scores entries at random, by magnitude, or by gradients, of adapters that begin with
    a change. Here the way up is 0 at first, and so are its magnitudes and all products of a weight
    and its gradient: the choice is random, per projection, as in the release's scripts.

    Args:
        hidden_features: Width of the bottleneck.
        sparsity: Fraction of the entries of both projections that stay 0.

    References:
        He, Ding, Dong, Zhang and Tao, *SparseAdapter: An Easy Approach for Improving the
        Parameter-Efficiency of Adapters*, Findings of EMNLP 2022, arXiv:2210.04284.
    """

    undecayed = ("down_bias", "up_bias")
    down_places: Tensor
    up_places: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        hidden_features: PositiveInt = 256,
        sparsity: Fraction = 0.75,
        **settings: Any,
    ) -> None:
        settings["hidden_features"] = hidden_features
        super().__init__(in_features, out_features, n_skills, **settings)
        self.sparsity = sparsity

        def drawn(*shape: int) -> Tensor:
            supports = (random_support({"": shape}, 1 - sparsity)[""] for _ in range(n_skills))
            return torch.stack([*supports])

        self.register_buffer("down_places", drawn(hidden_features, self.read_features))
        self.register_buffer("up_places", drawn(out_features, hidden_features))
        self.down = nn.Parameter(torch.empty(self.down_places.shape))
        self.up = nn.Parameter(torch.empty(self.up_places.shape))
        self.down_bias = nn.Parameter(torch.empty(n_skills, hidden_features))
        self.up_bias = nn.Parameter(torch.empty(n_skills, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the way down as `nn.Linear` does and set the way up to 0; the places stay."""
        bound = self.read_features**-0.5
        nn.init.uniform_(self.down, -bound, bound)
        for part in (self.up, self.down_bias, self.up_bias):
            nn.init.zeros_(part)

    def projections(self, weights: Float[Tensor, "B 1 K"] | None = None) -> Projections:
        n_hidden = self.hidden_features
        down = spread(self.down, self.down_places, n_hidden * self.read_features)
        up = spread(self.up, self.up_places, self.out_features * n_hidden)
        parts = (
            *(down.unflatten(1, (n_hidden, -1)), self.down_bias),
            *(up.unflatten(1, (-1, n_hidden)), self.up_bias),
        )
        return averaged(parts, weights)
