"""What `mttl ablate` wrote down: how tasks change where a skill is switched off.

``RUN/ablation/ablation.npz`` holds ``losses`` and, where answers were asked for, ``scores``:
changes (P, T, K) in P parts of the network; ``losses_before`` and ``scores_before (T,)``;
``tasks``, ``layers (P,)`` and ``groups``; and ``pairs (G, K)``, the skills of every group of layers
in the common order by which they are numbered where one is switched off in all.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.routing_record import read_arrays

FOLDER, FILE = "ablation", "ablation.npz"


@dataclass(frozen=True)
class Ablation:
    """How tasks change where a skill is switched off.

    Attributes:
        tasks: Names of the tasks.
        layers: Where skills were switched off.
        groups: Names of the groups of layers.
        pairs: The skills of every group in the common order.
        losses: Change of the loss; more is worse.
        scores: Change of the score, if it was asked for; less is worse.
        before: Loss, and score if it was asked for, of the model as it is.
    """

    tasks: tuple[str, ...]
    layers: tuple[str, ...]
    groups: tuple[str, ...]
    pairs: Int[np.ndarray, "G K"]
    losses: Float[np.ndarray, "P T K"]
    scores: Float[np.ndarray, "P T K"] | None
    before: dict[str, Float[np.ndarray, "T"]]

    @property
    def quantity(self) -> str:
        """What `changes` are of."""
        return "loss" if self.scores is None else "score"

    @property
    def changes(self) -> Float[np.ndarray, "P T K"]:
        """The changes of the score, in points of a hundred, else of the loss."""
        return self.losses if self.scores is None else 100 * self.scores


def read_ablation(path: Path) -> Ablation | None:
    """Read what was written down, if it was.

    Raises:
        CheckpointError: If the file is damaged.
    """
    path = path / FOLDER / FILE if path.is_dir() else path
    if not os.path.lexists(path):
        return None
    names = ("losses", "losses_before", "tasks", "layers", "groups", "pairs")
    arrays = read_arrays(path, names, optional=("scores", "scores_before"))
    tasks, layers, groups = (tuple(arrays[name].tolist()) for name in names[2:5])
    before = {name: arrays[f"{name}_before"] for name in ("losses", "scores") if name in arrays}
    return Ablation(
        *(tasks, layers, groups, arrays["pairs"].astype(np.int64), arrays["losses"]),
        *(arrays.get("scores"), before),
    )
