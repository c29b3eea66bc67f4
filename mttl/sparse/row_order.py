"""The order in which a loop of steps sees its rows."""

import torch
from torch import Tensor

from mttl.errors import require_at_least


class RowOrder:
    """An endless stream of rows: epoch after epoch, each in an order of its own.

    A place in the stream always holds the same row, so that whoever resumes needs only the place.

    Raises:
        ValueError: If there is no row.
    """

    def __init__(self, n_rows: int, seed: int) -> None:
        require_at_least(1, n_rows=n_rows)
        self.n_rows = n_rows
        self.seed = seed
        self._epoch: tuple[int, Tensor] | None = None

    def rows(self, start: int, n: int) -> list[int]:
        """Return the rows at ``n`` places of the stream."""
        return [self._at(place) for place in range(start, start + n)]

    def _at(self, place: int) -> int:
        epoch, place = divmod(place, self.n_rows)
        if self._epoch is None or self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
            self._epoch = epoch, torch.randperm(self.n_rows, generator=generator)
        return int(self._epoch[1][place])
