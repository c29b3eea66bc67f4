"""Kronecker skills: the change of a weight is one Kronecker product."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import Len
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import mix_blocks
from mttl.aggregation.products import active_dtype
from mttl.io.errors import require_one_of
from mttl.plugins.part_settings import OneOf, Positive, PositiveInt
from mttl.skills.inventory import Inventory, Merged, draw, require_divisible


class KronAInventory(Inventory):
    r"""Weight changes that are one Kronecker product of two small matrices.

    K Kronecker changes of a linear layer, :math:`\Delta_k = s \, A_k \otimes B_k`.

    A is :math:`o \times i` and B :math:`O/o \times I/i`: few numbers, and yet the change may have
    full rank. With mixing weights w, :math:`y = W_0 x + \sum_k w_k \Delta_k x` for the mixing
    ``"deltas"``, and :math:`y = W_0 x + s (\sum_k w_k A_k) \otimes (\sum_k w_k B_k) x` for
    ``"factors"``, which builds no matrix of the layer's size.

    Args:
        in_features: Features I of the layer's input.
        out_features: Features O of the layer's output.
        n_skills: Skills K.
        shape: Sizes (o, i) of the left matrix: divisors of output and input features; by default
            near the roots.
        scale: Factor on the change.
        mix: Average the two matrices, or their products.
        n_heads: Heads H; for ``"factors"`` only 1, else it must divide O.
        init: ``"zero"`` draws A and sets B to 0; ``"kaiming"`` draws both.

    Raises:
        ValueError: If a size is not positive, does not divide, or a word is unknown.

    References:
        Edalati, Tahaei, Kobyzev, Nia, Clark and Rezagholizadeh, *KronA: Parameter Efficient Tuning
        with Kronecker Adapter*, 2022, arXiv:2212.10650.
    """

    internal = ("init",)
    uses = ("task", "token", "composed")
    smallest_ndim = 2

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
        super().__init__(in_features, out_features, n_skills, n_heads)
        require_one_of(("factors", "deltas"), mix=mix)
        if mix == "factors" and n_heads > 1:
            raise ValueError(
                f"n_heads ({n_heads}) must be 1 for Kronecker factors, whose features have no "
                "blocks of their own; mix 'deltas' takes heads"
            )
        require_divisible(n_heads, out_features=out_features)
        shape = shape or (_near_root(out_features), _near_root(in_features))
        if len(shape) != 2 or min(shape) < 1 or out_features % shape[0] or in_features % shape[1]:
            raise ValueError(
                f"shape ({list(shape)}) must be two sizes that divide out_features "
                f"({out_features}) and in_features ({in_features})"
            )
        self.shape, self.scale, self.mix, self.init = tuple(shape), scale, mix, init
        rest = out_features // shape[0], in_features // shape[1]
        self.left = nn.Parameter(torch.empty(n_skills, *shape))
        self.right = nn.Parameter(torch.empty(n_skills, *rest))
        self.reset_parameters()

    @classmethod
    def of_tensor(cls, shape: Sequence[int], n_skills: int, **settings: Any) -> Inventory:
        """Return skills that add Kronecker products to a tensor seen as a matrix."""
        return super().of_tensor(shape, n_skills, **{"mix": "deltas"} | settings)

    def reset_parameters(self) -> None:
        """Draw the left factor as `nn.Linear` does, and the right one as ``init`` says."""
        draw(self.left, "kaiming", self.left.shape[-1])
        draw(self.right, self.init, self.right.shape[-1])

    def merge(self, weights: Float[Tensor, "B H K"]) -> Merged:
        """Return each example's factors, or its weight change."""
        if self.mix == "factors":
            return mix_blocks(self.left, weights), mix_blocks(self.right, self.scale * weights)
        return (mix_blocks(self.changes(), weights),)

    def combine(
        self, x: Float[Tensor, "B L I"], y: Float[Tensor, "B L O"], merged: Merged
    ) -> Float[Tensor, "B L O"]:
        """Add the change to the base output."""
        dtype = active_dtype(x)
        x, y = x.to(dtype), y.to(dtype)
        if self.mix == "deltas":
            return torch.baddbmm(y, x, merged[0].to(dtype).transpose(1, 2))
        left, right = (factor.to(dtype) for factor in merged)
        # (A ⊗ B) x = A X Bᵀ with X the input as a matrix (i, I / i).
        matrix = x.unflatten(-1, (self.shape[1], -1))
        inner = torch.matmul(matrix, right.mT.unsqueeze(1))
        return y + torch.matmul(left.unsqueeze(1), inner).flatten(2)

    def changes(self) -> Float[Tensor, "K O I"]:
        """Return what each skill alone adds to the base weight."""
        product = torch.einsum("kab,kcd->kacbd", self.left, self.scale * self.right)
        return product.reshape(self.n_skills, self.out_features, self.in_features)

    def delta(self, weights: Float[Tensor, "T H K"]) -> Float[Tensor, "T O I"]:
        """Return the change of the base weight that the mixture of each task amounts to."""
        if self.mix == "deltas":
            return super().delta(weights)
        left, right = self.merge(weights)
        product = torch.einsum("tab,tcd->tacbd", left, right)
        return product.reshape(-1, self.out_features, self.in_features)

    def compose(
        self, base: Float[Tensor, "*shape"], weights: Float[Tensor, "T 1 K"]
    ) -> Float[Tensor, "T *shape"]:
        """Return a parameter of each task: the common one and the task's change of it."""
        return base + self.delta(weights).view(-1, *base.shape)

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        shape = f"{self.shape[0]} x {self.shape[1]}"
        return f"{super().extra_repr()}, shape={shape}, scale={self.scale:g}, mix={self.mix}"


def _near_root(size: int) -> int:
    """Return the divisor of a size that is nearest to its root, the smaller one of two."""
    root = math.isqrt(size)
    return next(number for number in range(root, 0, -1) if size % number == 0)
