"""Vectors between random matrices that all layers share (VeRA)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import Positive, PositiveInt, Seed
from mttl.skills.inventory import Inputs, Inventory, Merged, Outputs, Weights


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
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.rank, self.start, self.seed = rank, start, seed
        self.inner = nn.Parameter(torch.empty(n_skills, rank))
        self.outer = nn.Parameter(torch.empty(n_skills, out_features))
        self._drawn: dict[int, Tensor] = {}  # A (0) and B (1) of the layer with the most features
        self.reset_parameters()

    def tie_to(self, first: Any) -> None:
        self._drawn = first._drawn

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
        down, up = self._rows(0, x.device).to(dtype), self._rows(1, x.device).to(dtype)  # type: ignore
        return torch.addcmul(y.to(dtype), outer, (x.to(dtype) @ down * inner) @ up.t())

    def delta(self, weights: Float[Tensor, "T 1 K"]) -> Float[Tensor, "T O I"]:
        inner, outer = self.merge(weights)
        down, up = (self._rows(which, inner.device).to(inner.dtype) for which in (0, 1))  # type: ignore
        return outer.unsqueeze(2) * ((up * inner.unsqueeze(1)) @ down.t())

    @torch.compiler.disable
    def _rows(self, which: int, device: torch.device) -> Float[Tensor, "n r"]:
        """Return A (0) or B (1) of this layer, with entries uniform in ±1."""
        n_rows = (self.in_features, self.out_features)[which]
        found = self._drawn.get(which, torch.empty(0))
        if len(found) < n_rows or found.device != device:
            draws = np.random.RandomState([self.seed, which])
            values = draws.uniform(-1, 1, (max(n_rows, len(found)), self.rank))
            with torch.inference_mode(False):  # training uses it too
                found = torch.from_numpy(values.astype(np.float32)).to(device)
            self._drawn[which] = found
        return found[:n_rows]
