"""What `scripts/ablate.py` wrote down: how tasks change where a skill is switched off.

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

from mttl.analysis.routing_record import read_arrays, read_names
from mttl.errors import CheckpointError

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

    Args:
        path: The file, or the folder of the run.

    Raises:
        CheckpointError: If the file is damaged.
    """
    path = path / FOLDER / FILE if path.is_dir() else path
    if not os.path.lexists(path):
        return None
    names = ("losses", "losses_before", "tasks", "layers", "groups", "pairs")
    arrays = read_arrays(path, names, optional=("scores", "scores_before"))
    tasks, layers, groups = (read_names(path, arrays[name]) for name in names[2:5])
    n_skills = arrays["pairs"].shape[-1] if arrays["pairs"].ndim == 2 else 0
    shapes = {
        **dict.fromkeys(("losses", "scores"), (len(layers), len(tasks), n_skills)),
        **dict.fromkeys(("losses_before", "scores_before"), (len(tasks),)),
        "pairs": (len(groups), n_skills),
    }
    for name, shape in shapes.items():
        if name not in arrays:
            continue
        values = arrays[name]
        fits = values.shape == shape and values.dtype.kind in "iuf" and np.isfinite(values).all()
        if not fits or not n_skills:
            raise CheckpointError(
                f"'{path}' is damaged ({name} must be finite numbers of shape {shape}, not "
                f"{values.shape}). Delete its folder, and run scripts/ablate.py again"
            )
    if (np.sort(arrays["pairs"], 1) != np.arange(n_skills)).any() or (
        ("scores" in arrays) != ("scores_before" in arrays)
    ):
        raise CheckpointError(
            f"'{path}' is damaged (its arrays do not belong together). Delete its folder, and run "
            "scripts/ablate.py again"
        )
    before = {name: arrays[f"{name}_before"] for name in ("losses", "scores") if name in arrays}
    return Ablation(
        *(tasks, layers, groups, arrays["pairs"].astype(np.int64), arrays["losses"]),
        *(arrays.get("scores"), before),
    )
