"""The base of the metrics: rows that processes can join, also where one of them holds none.

Rows are kept as whole numbers: strings as bytes, doubles as their bits. A model that is turned to
half precision takes its metrics along, and that changes no whole number; every device has them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torchmetrics import Metric


class TextMetric(Metric):
    """Base of the metrics: joins lists of rows across processes."""

    full_state_update = False
    higher_is_better = True

    def __init__(self) -> None:
        super().__init__()
        self._empty: dict[str, Tensor] = {}
        # A process may hold no row of a task; NaN says so, a warning per task and epoch does not.
        self._update_count = 1

    def add_rows_state(self, name: str, empty: Tensor) -> None:
        """Add a list of tensors to be joined along their first axis; ``empty`` has no row."""
        self.add_state(name, [], dist_reduce_fx="cat")
        self._empty[name] = empty

    def numbers(self, name: str) -> Float64[np.ndarray, "rows columns"]:
        """Return a list state that holds the bits of doubles."""
        return self.rows(name).cpu().view(torch.float64).numpy()

    def rows(self, name: str) -> Tensor:
        """Return a list state as one tensor, before and after processes joined theirs."""
        state = getattr(self, name)
        if isinstance(state, Tensor):
            return state
        return torch.cat([self._empty[name].to(self.device), *state])

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Join the states of all processes.

        A process with an empty list would not take part, and the others would wait for ever.
        """
        for name, empty in self._empty.items():
            if not getattr(self, name):
                setattr(self, name, [empty.to(self.device)])
        super().sync(*args, **kwargs)

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._update_count = 1


def check_rows(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse rows that cannot be scored.

    Raises:
        ValueError: If the lengths differ, or a row has no reference.
    """
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions and {len(references)} lists of references; "
            "there must be one list per prediction"
        )
    for row, accepted in enumerate(references):
        if not accepted:
            raise ValueError(f"row {row} has no reference; every row needs at least one")
