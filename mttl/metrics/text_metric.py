"""The base of the metrics: rows that processes can join, also where one of them holds none."""

import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torchmetrics import Metric


class TextMetric(Metric):
    """A score of rows: a number between -1 and 1, and NaN without any row.

    What is kept of a row is JSON in bytes, which processes join exactly, whatever the precision
    that the model is turned to.
    """

    full_state_update = False
    higher_is_better = True
    kept: Any

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", [], dist_reduce_fx="cat")
        # A process may hold no row of a task; NaN says so, a warning per task and epoch does not.
        self._update_count = 1

    @abstractmethod
    def row(self, prediction: str, accepted: Sequence[str]) -> Any:
        """Return what is kept of an answer and its accepted ones, as JSON."""

    @abstractmethod
    def score(self, rows: Sequence[Any]) -> float:
        """Return the score of what was kept of all rows."""

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add rows: predictions, and the accepted answers of each."""
        pairs = zip(predictions, references, strict=True)
        lines = "".join(json.dumps(self.row(*pair)) + "\n" for pair in pairs)
        if lines:
            added = torch.frombuffer(bytearray(lines.encode()), dtype=torch.uint8)
            self.kept.append(added.to(self.device))

    def compute(self) -> Float64[Tensor, ""]:
        """Return the score, on the CPU: not every device has doubles."""
        kept = (
            self.kept if isinstance(self.kept, Tensor) else torch.cat([self._empty(), *self.kept])
        )
        rows = [json.loads(line) for line in kept.cpu().numpy().tobytes().splitlines()]
        return torch.tensor(self.score(rows) if rows else math.nan, dtype=torch.float64)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Join the rows of all processes; one without any takes part, or the others would wait."""
        self.kept = self.kept or [self._empty()]
        super().sync(*args, **kwargs)

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._update_count = 1

    def _empty(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.device)
