"""Kronecker skills: the change of a weight is one Kronecker product."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Len
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import OneOf, Positive, PositiveInt
from mttl.skills.inventory import Inputs, Merged, Outputs, ProductInventory, Weights, draw


class KronAInventory(ProductInventory):
    r"""Weight changes that are one Kronecker product of two small matrices.

    K Kronecker changes of a linear layer, :math:`\Delta_k = s \, A_k \otimes B_k`.

    A is :math:`o \times i` and B :math:`O/o \times I/i`: few numbers, and yet the change may have
    full rank. With mixing weights w, :math:`y = W_0 x + \sum_k w_k \Delta_k x` for the mixing
    ``"deltas"``, and :math:`y = W_0 x + s (\sum_k w_k A_k) \otimes (\sum_k w_k B_k) x` for
    ``"factors"``, which builds no matrix of the layer's size.

    Args:
        shape: Sizes (o, i) of the left matrix: divisors of output and input features; by default
            near the roots.
        scale: Factor on the change.
        mix: Average the two matrices, or their products.
        n_heads: Heads H; for ``"factors"`` only 1, else it must divide O.
        init: ``"zero"`` draws A and sets B to 0; ``"kaiming"`` draws both.

    References:
        Edalati, Tahaei, Kobyzev, Nia, Clark and Rezagholizadeh, *KronA: Parameter Efficient Tuning
        with Kronecker Adapter*, 2022, arXiv:2212.10650.
    """

    internal = ("init",)
    uses = ("task", "token", "composed")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        shape: Annotated[Sequence[PositiveInt], Len(2, 2)] | None = None,
        scale: Positive = 1.0,
        mix: Annotated[str, OneOf("factors", "deltas")] = "factors",
        n_heads: int = 1,
        init: str = "zero",
    ) -> None:
        if mix == "factors":
            self.cut_by_heads = ()
        super().__init__(in_features, out_features, n_skills, n_heads)
        shape = shape or (_near_root(out_features), _near_root(in_features))
        if out_features % shape[0] or in_features % shape[1]:
            raise ValueError(
                f"shape ({list(shape)}) must be two sizes that divide out_features "
                f"({out_features}) and in_features ({in_features})"
            )
        self.shape, self.scale, self.mix, self.init = tuple(shape), scale, mix, init
        rest = out_features // shape[0], in_features // shape[1]
        self.left = nn.Parameter(torch.empty(n_skills, *shape))
        self.right = nn.Parameter(torch.empty(n_skills, *rest))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw(self.left, "kaiming", self.left.shape[-1])
        draw(self.right, self.init, self.right.shape[-1])

    def merge(self, weights: Weights) -> Merged:
        if self.mix == "factors":
            return mix_blocks(self.left, weights), mix_blocks(self.right, self.scale * weights)
        return super().merge(weights)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        if self.mix == "deltas":
            return super().combine(x, y, merged)
        dtype = active_dtype(x)
        x, y = x.to(dtype), y.to(dtype)
        left, right = (factor.to(dtype) for factor in merged)
        # (A ⊗ B) x = A X Bᵀ with X the input as a matrix (i, I / i).
        matrix = x.unflatten(-1, (self.shape[1], -1))
        inner = torch.matmul(matrix, right.mT.unsqueeze(1))
        return y + torch.matmul(left.unsqueeze(1), inner).flatten(2)

    def changes(self) -> Float[Tensor, "K O I"]:
        product = torch.einsum("kab,kcd->kacbd", self.left, self.scale * self.right)
        return product.reshape(self.n_skills, self.out_features, self.in_features)

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O I"]:
        if self.mix == "deltas":
            return super().delta(weights)
        left, right = self.merge(weights)
        product = torch.einsum("tab,tcd->tacbd", left, right)
        return product.reshape(-1, self.out_features, self.in_features)


def _near_root(size: int) -> int:
    """Return the divisor of a size that is nearest to its root, the smaller one of two."""
    root = math.isqrt(size)
    return next(number for number in range(root, 0, -1) if size % number == 0)
