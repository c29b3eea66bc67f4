"""A low-rank change of a weight as a pair of factors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class LowRank:
    """A weight change ``up @ downᵀ``.

    Attributes:
        down: Input-side factor A, shape (I, r).
        up: Output-side factor B, shape (O, r); the skills' scale is in it.
        dropped: Frobenius norm of what was cut off; 0 where nothing was.
    """

    down: Float[Tensor, "I r"]
    up: Float[Tensor, "O r"]
    dropped: float = 0.0

    @property
    def rank(self) -> int:
        """Columns of the factors."""
        return self.down.shape[1]

    @property
    def sizes(self) -> tuple[int, int]:
        """Features in and out."""
        return self.down.shape[0], self.up.shape[0]

    @property
    def norm(self) -> float:
        """Frobenius norm of the whole change, what was cut off included."""
        down, up = self.down.double(), self.up.double()
        kept = ((down.t() @ down) * (up.t() @ up)).sum()  # ‖B Aᵀ‖² without the product
        return (float(kept) + self.dropped**2) ** 0.5

    def padded(self, rank: int) -> "LowRank":
        """Return the same change with columns of zeros up to a rank."""
        extra = (0, rank - self.rank)
        down, up = (torch.nn.functional.pad(factor, extra) for factor in (self.down, self.up))
        return LowRank(down, up, self.dropped)

    def trimmed(self) -> "LowRank":
        """Return the same change without columns of zeros at the end."""
        used = (self.down.any(0) | self.up.any(0)).nonzero()
        rank = int(used.max()) + 1 if len(used) else 0
        return LowRank(self.down[:, :rank], self.up[:, :rank], self.dropped)
