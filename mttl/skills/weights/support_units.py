"""What a support chooses as a whole: entries, rows or blocks of a tensor.

| structure | is chosen as a whole, by its mean score |
|---|---|
| ``"entries"`` | an entry |
| ``"rows"`` | what belongs to one output: all axes but the first |
| ``"blocks"`` | a square of entries of the matrix (first axis × all others), cut off at its edges |
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.config.enums import STRUCTURES
from mttl.io.errors import require_at_least, require_one_of


class Units:
    """How a tensor is cut into units that are chosen as a whole.

    Args:
        shape: Of the tensor.
        structure: ``"entries"``, ``"rows"`` or ``"blocks"``.
        block: Side of a block.

    Raises:
        ValueError: If the structure is unknown, or the block has no side.
    """

    def __init__(self, shape: Sequence[int], structure: str, block: int) -> None:
        require_one_of(STRUCTURES, structure=structure)
        require_at_least(1, block=block)
        self.height = shape[0] if len(shape) > 1 else math.prod(shape)
        self.width = math.prod(shape[1:]) if len(shape) > 1 else 1
        self.high = block if structure == "blocks" else 1
        self.wide = {"entries": 1, "rows": max(1, self.width), "blocks": block}[structure]
        self.across = math.ceil(self.width / self.wide)
        self.count = math.ceil(self.height / self.high) * self.across

    @property
    def trivial(self) -> bool:
        return self.high == self.wide == 1

    def sizes(self, units: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """Return how many entries units have: those at the edges may have fewer."""
        high = (self.height - (units // self.across) * self.high).clamp(max=self.high)
        wide = (self.width - (units % self.across) * self.wide).clamp(max=self.wide)
        return high * wide

    def means(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "n"]:
        matrix = scores.detach().reshape(self.height, self.width)
        if self.trivial:
            return matrix.flatten()
        down, right = -self.height % self.high, -self.width % self.wide
        padded = torch.nn.functional.pad(matrix.double(), (0, right, 0, down))
        sums = padded.unflatten(1, (-1, self.wide)).unflatten(0, (-1, self.high)).sum((1, 3))
        return sums.flatten() / self.sizes(torch.arange(self.count, device=scores.device))

    def entries(self, units: Int[Tensor, "n"]) -> Int[Tensor, "m"]:
        """Return the sorted places of all entries of the units."""
        if self.trivial:
            return units
        device = units.device
        rows = (units // self.across * self.high)[:, None, None]
        columns = (units % self.across * self.wide)[:, None, None]
        rows = rows + torch.arange(self.high, device=device)[:, None]
        columns = columns + torch.arange(self.wide, device=device)
        inside = (rows < self.height) & (columns < self.width)
        return (rows * self.width + columns)[inside].sort().values
