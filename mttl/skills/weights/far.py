"""Dense changes of a few rows of a layer's weight (freeze and reconfigure)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import Fraction
from mttl.skills.inventory import Inputs, Merged, Outputs, Weights, ZeroInventory
from mttl.skills.weights.sparse import fixed_by_file
from mttl.skills.weights.supports import random_indices, require_inside


class FARInventory(ZeroInventory):
    r"""K dense changes of the same r rows of a weight; the other rows are frozen (FAR).

    :math:`(\sum_k w_k \Delta_k)\,x` is added to the output at the rows. A skill is one dense matrix
    (r, I), without indices of entries, and products are dense. Fresh skills change nothing.

    The paper trains the rows (nodes) of feed-forward layers with the largest L1 change in a priming
    phase, the first phase of ``mttl sparse --structure rows``, which divides the change of a row by
    its length. It also trains the biases of these rows, which are frozen here.

    Args:
        sparsity: Fraction of rows that are frozen.
        support: ``"random"``, or a file of ``mttl sparse --structure rows`` with the rows.

    References:
        Vucetic, Tayaranian, Ziaeefard, Clark, Meyer and Gross, *Efficient Fine-Tuning of BERT
        Models on the Edge*, ISCAS 2022, arXiv:2205.01541.
    """

    refuses: ClassVar = fixed_by_file(sparsity=0.9)
    indices: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        sparsity: Fraction = 0.9,
        support: str = "random",
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.support = support
        rows = random_indices(out_features, max(1, round((1 - sparsity) * out_features)))
        self.register_buffer("indices", rows)
        self.values = nn.Parameter(torch.zeros(n_skills, len(rows), in_features))

    def set_support(self, entries: Int[Tensor, "n"], *, masked: bool = False) -> None:
        rows = (entries // self.in_features).unique()
        if masked or len(rows) * self.in_features != len(entries):
            raise ValueError("the support must have whole rows; use --structure rows, --form added")
        self.set_indices(rows)

    def set_indices(self, indices: Int[Tensor, "r"]) -> None:
        """Replace the rows; the values start at 0."""
        require_inside(indices, self.out_features)
        self.indices = indices.to(self.indices.device, torch.int64)
        values = self.values.new_zeros(self.n_skills, len(indices), self.in_features)
        self.values = nn.Parameter(values)

    def merge(self, weights: Weights) -> Merged:
        return (mix_blocks(self.values, weights),)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        change = torch.bmm(x.to(dtype), merged[0].to(dtype).mT)
        return y.to(dtype).index_add(2, self.indices, change)

    def changes(self) -> Float[Tensor, "K O I"]:
        shape = self.n_skills, self.out_features, self.in_features
        return self.values.new_zeros(shape).index_copy(1, self.indices, self.values)
