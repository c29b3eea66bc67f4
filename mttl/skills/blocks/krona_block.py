"""Kronecker skills beside a block: one product of the block's input, and a share of it."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Len
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.skills.inventory import NO_WEIGHTS, Inputs, Inventory, Merged, Outputs
from mttl.skills.weights.krona import KronAInventory


class KronABlockInventory(Inventory):
    r"""One Kronecker product beside a block, and a learned share of the block's input.

    K changes of a block's output, :math:`f_k(x) = s (A_k \otimes B_k) x + g_k x`.

    A is :math:`o \times i` and B :math:`O/o \times I/i`, and the number :math:`g_k` is learned:
    KronA\ :sup:`B`\ :sub:`res` of the paper, and KronA\ :sup:`B` without g. There is no
    activation between the two factors. With mixing weights w,
    :math:`y + s (\sum_k w_k A_k) \otimes (\sum_k w_k B_k) x + (\sum_k w_k g_k) x`.

    The share begins at 0, as B does, so that a fresh skill changes nothing.

    Args:
        shape: Sizes (o, i) of the left matrix: divisors of output and input features; by default
            near the roots.
        scale: Factor on the product.
        residual: Learn the share of the input (KronA-res); else there is the product alone.

    References:
        Edalati, Tahaei, Kobyzev, Nia, Clark and Rezagholizadeh, *KronA: Parameter Efficient Tuning
        with Kronecker Adapter*, 2022, arXiv:2212.10650.
    """

    lacks: ClassVar = NO_WEIGHTS
    section_defaults: ClassVar = {"targets": ["mlp"]}
    uses = ("task", "token")
    attachment_point = "block"
    cut_by_heads = ()
    undecayed = ("residual",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        shape: Annotated[Sequence[PositiveInt], Len(2, 2)] | None = None,
        scale: Positive = 1.0,
        residual: bool = True,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        if residual and in_features != out_features:
            raise ValueError(
                f"residual must be false where a block's output ({out_features} features) differs "
                f"in size from its input ({in_features} features)"
            )
        self.product = KronAInventory(in_features, out_features, n_skills, shape=shape, scale=scale)
        self.residual = nn.Parameter(torch.zeros(n_skills)) if residual else None

    def reset_parameters(self) -> None:
        """Draw the products as KronA's, which change nothing yet, and set the share to 0."""
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
