"""Kronecker skills: a Kronecker product as a weight change, or parallel to a block."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Len
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import OneOf, Positive, PositiveInt
from mttl.skills.inventory import (
    NO_WEIGHTS,
    Inputs,
    Inventory,
    Merged,
    Outputs,
    ProductInventory,
    Weights,
    draw,
)

Shape = Annotated[Sequence[PositiveInt], Len(2, 2)]


class KronAInventory(ProductInventory):
    r"""Weight changes that are one Kronecker product of two small matrices.

    The changes are :math:`\Delta_k = s \, A_k \otimes B_k` with A of the size :math:`o \times i`
    and B of the size :math:`O/o \times I/i`; they have few parameters and up to full rank. With
    mixing weights w, :math:`y = W_0 x + \sum_k w_k \Delta_k x` for ``mix="deltas"``, and
    :math:`y = W_0 x + s (\sum_k w_k A_k) \otimes (\sum_k w_k B_k) x` for ``"factors"``, which
    needs no matrix of the layer's size.

    Args:
        shape: Sizes (o, i) of the left matrix: divisors of output and input features; by default
            near the square roots.
        scale: Factor on the change.
        mix: Quantity averaged over the skills: the two matrices (``"factors"``) or their products.
        init: ``"zero"`` draws A and sets B to 0; ``"kaiming"`` draws both.

    References:
        Edalati, Tahaei, Kobyzev, Nia, Clark and Rezagholizadeh, *KronA: Parameter Efficient Tuning
        with Kronecker Adapter*, 2022, arXiv:2212.10650.
    """

    internal = ("init",)
    adapter_format = "LOKR"
    uses = ("task", "token", "composed")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        shape: Shape | None = None,
        scale: Positive = 1.0,
        mix: Annotated[str, OneOf("factors", "deltas")] = "factors",
        n_heads: int = 1,
        init: str = "zero",
    ) -> None:
        if mix == "factors" and n_heads > 1:
            raise ValueError(f"n_heads ({n_heads}) must be 1 with mix: factors; use mix: deltas")
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
        return _products(self.left, self.scale * self.right)

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O I"]:
        if self.mix == "deltas":
            return super().delta(weights)
        return _products(*self.merge(weights))


class KronABlockInventory(Inventory):
    r"""A Kronecker product parallel to a block, and a learned multiple of the block's input.

    A skill adds :math:`f_k(x) = s (A_k \otimes B_k) x + g_k x` with the matrices of
    `KronAInventory`: KronA\ :sup:`B`\ :sub:`res` of its paper, and KronA\ :sup:`B` without g.
    With mixing weights w,
    :math:`y + s (\sum_k w_k A_k) \otimes (\sum_k w_k B_k) x + (\sum_k w_k g_k) x`.
    B and g start at 0, so that a fresh skill changes nothing.

    Args:
        shape: Sizes (o, i) of the left matrix: divisors of output and input features; by default
            near the square roots.
        scale: Factor on the product.
        residual: Whether to learn the factor g of the input (KronA-res).

    References:
        Edalati et al., arXiv:2212.10650.
    """

    lacks: ClassVar = NO_WEIGHTS
    section_defaults: ClassVar = {"targets": ["mlp"]}
    uses = ("task", "token")
    attachment_point = "block"
    undecayed = ("residual",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        shape: Shape | None = None,
        scale: Positive = 1.0,
        residual: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        if residual and in_features != out_features:
            raise ValueError(
                f"residual must be false for a block with {in_features} -> {out_features} features"
            )
        self.product = KronAInventory(in_features, out_features, n_skills, shape=shape, scale=scale)
        self.residual = nn.Parameter(torch.zeros(n_skills)) if residual else None

    def reset_parameters(self) -> None:
        self.product.reset_parameters()
        if self.residual is not None:
            nn.init.zeros_(self.residual)

    def merge(self, weights: Float[Tensor, "B 1 K"]) -> Merged:
        factors = self.product.merge(weights)
        return factors if self.residual is None else (*factors, weights[:, 0] @ self.residual)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        factors, share = merged[:2], merged[2:]
        y = self.product.combine(x, y, factors)
        if not share:
            return y
        dtype = active_dtype(x)
        return torch.addcmul(y, share[0].to(dtype)[:, None, None], x.to(dtype))


def _products(left: Float[Tensor, "N a b"], right: Float[Tensor, "N c d"]) -> Tensor:
    """Return the Kronecker products, of shape (N, a c, b d)."""
    return torch.einsum("nab,ncd->nacbd", left, right).flatten(3).flatten(1, 2)


def _near_root(size: int) -> int:
    """Return the largest divisor of a size that is at most its square root."""
    return next(number for number in range(math.isqrt(size), 0, -1) if size % number == 0)
