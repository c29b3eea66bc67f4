"""Vectors between random matrices that all layers share (VeRA)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import Positive, PositiveInt, Seed
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights


class SharedMatrices:
    """Two random matrices; each layer reads as many of the first rows as it has features."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank, self.seed = rank, seed
        self._drawn: dict[int, Tensor] = {}

    @torch.compiler.disable
    def rows(self, which: int, n_rows: int, device: torch.device) -> Float[Tensor, "n r"]:
        """Return the first rows of the first (0) or second (1) matrix, uniform in ±1."""
        found = self._drawn.get(which, torch.empty(0))
        if len(found) < n_rows or found.device != device:
            draws = np.random.RandomState([self.seed, which])
            values = draws.uniform(-1, 1, (max(n_rows, len(found)), self.rank))
            with torch.inference_mode(False):  # training uses it too
                found = torch.from_numpy(values.astype(np.float32)).to(device)
            self._drawn[which] = found
        return found[:n_rows]


class VeRAInventory(Inventory):
    r"""K pairs of vectors that scale two fixed random matrices.

    :math:`y = W_0 x + b \odot B (d \odot A^\top x)` with :math:`b = \sum_k w_k b_k` and
    :math:`d = \sum_k w_k d_k`. A (I, r) and B (O, r) are drawn from the seed, not saved, and shared
    by all layers, which read their first rows. Their entries are uniform with the variances 2 / I
    and 2 / r. A skill has r + O numbers in a layer; fresh ones change nothing, since b starts at 0.

    Args:
        rank: Columns r of the matrices.
        start: Initial value of d.
        seed: Seed of the matrices.

    References:
        Kopiczko, Blankevoort and Asano, *VeRA: Vector-based Random Matrix Adaptation*, ICLR 2024,
        arXiv:2310.11454.
    """

    uses = ("task", "token")
    cut_by_heads = ()
    undecayed = ("inner", "outer")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        rank: PositiveInt = 256,
        start: Positive = 0.1,
        seed: Seed = 0,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.rank, self.start, self.seed = rank, start, seed
        self.inner = nn.Parameter(torch.empty(n_skills, rank))
        self.outer = nn.Parameter(torch.empty(n_skills, out_features))
        self.matrices = SharedMatrices(rank, seed)
        self.reset_parameters()

    def tie_to(self, first: Any) -> None:
        self.matrices = first.matrices

    def reset_parameters(self) -> None:
        nn.init.constant_(self.inner, self.start)
        nn.init.zeros_(self.outer)

    def merge(self, weights: Weights) -> Merged:
        # The deviations of both matrices multiply the smallest tensor.
        scale = 6 / (self.in_features * self.rank) ** 0.5
        return scale * mix_blocks(self.inner, weights), mix_blocks(self.outer, weights)

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(x)
        inner, outer = (part.to(dtype).unsqueeze(1) for part in merged)
        down, up = (part.to(dtype) for part in self._factors(x.device))
        return torch.addcmul(y.to(dtype), outer, (x.to(dtype) @ down * inner) @ up.t())

    def delta(self, weights: Float[Tensor, "T 1 K"]) -> Float[Tensor, "T O I"]:
        inner, outer = self.merge(weights)
        down, up = (part.to(inner.dtype) for part in self._factors(inner.device))
        return outer.unsqueeze(2) * ((up * inner.unsqueeze(1)) @ down.t())

    def _factors(self, device: torch.device) -> tuple[Float[Tensor, "I r"], Float[Tensor, "O r"]]:
        """Return A and B of this layer, with entries in ±1."""
        down = self.matrices.rows(0, self.in_features, device)  # type: ignore
        up = self.matrices.rows(1, self.out_features, device)  # type: ignore
        return down, up
