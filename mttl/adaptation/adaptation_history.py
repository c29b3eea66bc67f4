"""The course of an adaptation: how the row of the new task moved, and what it scored on the way.

Saved with an adapted task as ``plots/routing_history.npz``: ``steps (S,)`` and ``weights (S, G, 1,
K)`` as training writes them, and ``score_steps (N,)`` and ``scores (N,)`` on development rows.
"""

from pathlib import Path

import numpy as np
import torch

from mttl.routing.task.task_router import TaskRouter
from mttl.training.monitors import routing_weights, write_arrays

N_RECORDS = 20


class AdaptationHistory:
    """Records the routing weights of a new task from time to time, and at every score.

    ``rows`` (as of `routing_weights`) and ``scores`` (on development rows) are by step.
    """

    def __init__(self, router: TaskRouter, n_steps: int) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.scores: dict[int, float] = {}
        self._router, self._n_steps, self._step = router, n_steps, 0

    def note_step(self) -> None:
        """Count a step, and keep the routing if the last record was long ago."""
        self._step += 1
        if self._step % max(1, self._n_steps // N_RECORDS) == 0:
            self._note()

    def note_score(self, score: float) -> None:
        """Keep the score of the last step, and the routing that got it."""
        self.scores[self._step] = score
        self._note()

    def write(self, path: Path) -> None:
        """Write what was kept."""
        steps = sorted(self.rows)
        write_arrays(
            path,
            steps=np.array(steps, dtype=np.int64),
            weights=np.stack([self.rows[step] for step in steps]).astype(np.float16),
            score_steps=np.array(list(self.scores), dtype=np.int64),
            scores=np.nan_to_num(np.array(list(self.scores.values()), dtype=np.float64)),
        )

    def _note(self) -> None:
        with torch.no_grad():
            self.rows[self._step] = routing_weights(self._router)
