"""Compacter: adapters whose projections are sums of Kronecker products with shared factors."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import PositiveInt
from mttl.skills.blocks.adapter import BottleneckInventory, Projections
from mttl.skills.blocks.feed_forward_experts import ActivationSetting


class CompacterInventory(BottleneckInventory):
    r"""Adapters whose projections are sums of Kronecker products with shared factors.

    The projections are :math:`W = \sum_{i=1}^{n} A_i \otimes B_i` (PHM layers). The
    rules :math:`A_i` are :math:`n \times n` and common to both projections; the factors
    :math:`B_i` have an n-th of the projection's sides and, with a rank r, are products
    :math:`s_i t_i^\top` of r columns (LPHM). Each skill has its own rules, which all layers share
    if ``shared`` is set. ``mix="factors"`` averages A, s and t separately.

    A fresh Compacter changes nothing, and the down-projection has the variance of `nn.Linear`. The
    release draws both projections, so it starts with a change.

    Args:
        n_products: Number of Kronecker products in a projection; must divide all sizes.
        rank: Rank of a layer's factors; None keeps them dense (PHM).
        shared: Whether all layers share the small factors.

    References:
        Karimi Mahabadi, Henderson and Ruder, *Compacter: Efficient Low-Rank Hypercomplex Adapter
        Layers*, NeurIPS 2021, arXiv:2106.04647.
    """

    lacks: ClassVar = {
        "shards": ("shared", "fsdp2 shards blocks, which share factors; set {path}.shared: false")
    }
    undecayed = ("down_bias", "up_bias")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        hidden_features: PositiveInt = 32,
        activation: ActivationSetting = "gelu_new",
        n_products: PositiveInt = 4,
        rank: PositiveInt | None = 1,
        shared: bool = True,
        **settings: Any,
    ) -> None:
        settings |= {"hidden_features": hidden_features, "activation": activation}
        super().__init__(in_features, out_features, n_skills, **settings)
        n_read = self.read_features
        sizes = {"in_features": n_read, "out_features": out_features}
        for name, size in (sizes | {"hidden_features": hidden_features}).items():
            if size % n_products:
                raise ValueError(f"n_products ({n_products}) must divide {name} ({size})")
        self.n_products, self.rank, self.shared = n_products, rank, shared

        def factors(n_out: int, n_in: int) -> nn.ParameterList:
            sides = n_skills, n_products, n_out // n_products, n_in // n_products
            shapes = [sides] if rank is None else [(*sides[:3], rank), (*sides[:2], rank, sides[3])]
            return nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in shapes)

        self.rule = nn.Parameter(torch.empty(n_skills, n_products, n_products, n_products))
        self.down = factors(hidden_features, n_read)
        self.up = factors(out_features, hidden_features)
        self.down_bias = nn.Parameter(torch.empty(n_skills, hidden_features))
        self.up_bias = nn.Parameter(torch.empty(n_skills, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The entries of a sum of n products have the variance of those of one B.
        _draw(self.rule, 1 / self.n_products)
        for factors, n_in in ((self.down, self.read_features), (self.up, self.hidden_features)):
            *left, right = factors
            for factor in left:
                _draw(factor, 1 / factor.shape[-1])
            _draw(right, 1 / (3 * n_in))
        nn.init.zeros_(self.up[-1])
        nn.init.zeros_(self.down_bias)
        nn.init.zeros_(self.up_bias)

    def tie_to(self, first: Any) -> None:
        if self.shared:
            self.rule = first.rule

    def projections(self, weights: Float[Tensor, "B 1 K"] | None = None) -> Projections:
        def mixed(part: Tensor) -> Tensor:
            return part if weights is None else mix_blocks(part, weights)

        def summed(factors: nn.ParameterList) -> Tensor:
            left, *right = (mixed(factor) for factor in factors)
            small = left @ right[0] if right else left
            products = torch.einsum("knab,kncd->kacbd", rule, small)
            return products.flatten(3).flatten(1, 2)

        rule = mixed(self.rule)
        return summed(self.down), mixed(self.down_bias), summed(self.up), mixed(self.up_bias)


def _draw(tensor: Tensor, variance: float) -> None:
    bound = (3 * variance) ** 0.5
    nn.init.uniform_(tensor, -bound, bound)
