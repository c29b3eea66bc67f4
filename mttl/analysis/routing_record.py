"""The files of a run about its routing.

| file | content |
|---|---|
| ``plots/routing.npz`` | ``weights`` and ``probabilities (G, T, K)``, ``tasks``, ``groups`` |
| ``plots/routing_history.npz`` | the same over training: ``steps (S,)``, ``weights (S, G, T, K)`` |
| ``metrics.csv`` | columns ``routing/…``: the statistics over training |

With several heads each head is a group. Probabilities are what the router says of itself before it
normalises. Damaged files are a `CheckpointError`.

`mttl ablate` writes ``RUN/ablation/ablation.npz``, how tasks change where a skill is switched off:
an `Ablation` of P parts of the network, and ``losses_before`` and ``scores_before (T,)``.
"""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from envs.files import load_arrays
from mttl.analysis.statistics import ACTIVE
from mttl.io.errors import CheckpointError
from mttl.io.reading import read_table

PREFIX = "routing/"
FOLDER, FILE = "ablation", "ablation.npz"
Curves = dict[str, tuple[np.ndarray, np.ndarray]]  # name -> steps and values


@dataclass(frozen=True)
class RoutingHistory:
    """The mixing weights over training."""

    steps: Int[np.ndarray, "S"]
    weights: Float[np.ndarray, "S G T K"]


@dataclass(frozen=True)
class RoutingRecord:
    """The routing of a run.

    Attributes:
        groups: Names of the groups of layers.
        weights: Mixing weights of the weights that the run kept.
        probabilities: How likely each task is to use each skill, before normalisation.
        history: How the weights came about, if the run recorded it.
        curves: The statistics over training, by name (``discreteness``, ``encoder/usage`` …).
    """

    folder: Path
    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    weights: Float[np.ndarray, "G T K"]
    probabilities: Float[np.ndarray, "G T K"]
    history: RoutingHistory | None = None
    curves: Curves = field(default_factory=dict)


def read_record(folder: str | Path) -> RoutingRecord:
    """Read what a run wrote down about its routing.

    Raises:
        CheckpointError: If the run has no ``plots/routing.npz``, or a file is damaged.
    """
    folder = Path(folder)
    path = folder / "plots" / "routing.npz"
    if not path.is_file():
        raise CheckpointError(
            f"'{path}' does not exist. Give the folder of a run that has ended: training writes "
            "this file last. An interrupted run is finished with --resume"
        )
    names = ("tasks", "groups", "weights", "probabilities")
    tasks, groups, weights, probabilities = read_arrays(path, names).values()
    curves = {
        name.removeprefix(PREFIX).replace("active_cells", ACTIVE): curve
        for name, curve in read_metrics(folder).items()
        if name.startswith(PREFIX)
    }
    return RoutingRecord(
        folder=folder,
        tasks=tuple(tasks.tolist()),
        groups=tuple(groups.tolist()),
        weights=weights.astype(np.float64),
        probabilities=probabilities.astype(np.float64),
        history=read_history(folder),
        curves=curves,
    )


def read_history(folder: Path) -> RoutingHistory | None:
    """Read the mixing weights over a training or an adaptation, if they were written down."""
    path = folder / "plots" / "routing_history.npz"
    if not os.path.lexists(path):
        return None
    steps, weights = read_arrays(path, ("steps", "weights")).values()
    return RoutingHistory(steps, weights.astype(np.float64)) if len(steps) else None


def read_metrics(folder: Path) -> Curves:
    """Return the columns of ``metrics.csv`` over the steps; only finite values are kept."""
    path = folder / "metrics.csv"
    if not os.path.lexists(path):
        return {}
    points: dict[str, list[tuple[int, float]]] = {}
    try:
        for row in read_table(path, CheckpointError, ["step"]):
            for name, value in row.items():
                if name != "step" and value and math.isfinite(float(value)):
                    points.setdefault(name, []).append((int(row["step"]), float(value)))
    except ValueError as error:
        raise CheckpointError(f"'{path}' is damaged ({error}). {_AGAIN}") from error
    columns = ((name, zip(*found, strict=True)) for name, found in points.items())
    return {name: (np.array(steps), np.array(values)) for name, (steps, values) in columns}


@dataclass(frozen=True)
class Ablation:
    """How tasks change where a skill is switched off, in some layers.

    Attributes:
        pairs: The skills of every group in the common order, by which they are numbered where one
            is switched off in all.
        losses: Change of the loss; more is worse.
        scores: Change of the score, if it was asked for; less is worse.
    """

    tasks: tuple[str, ...]
    layers: tuple[str, ...]
    groups: tuple[str, ...]
    pairs: Int[np.ndarray, "G K"]
    losses: Float[np.ndarray, "P T K"]
    scores: Float[np.ndarray, "P T K"] | None

    def is_of(self, record: RoutingRecord) -> bool:
        """Tell whether tasks and groups of layers are those of a run."""
        return (self.tasks, self.groups) == (record.tasks, record.groups)

    @property
    def quantity(self) -> str:
        """What `changes` are of."""
        return "loss" if self.scores is None else "score"

    @property
    def changes(self) -> Float[np.ndarray, "P T K"]:
        """The changes of the score, in points of a hundred, else of the loss."""
        return self.losses if self.scores is None else 100 * self.scores


def read_ablation(path: Path) -> Ablation | None:
    """Read what was written down, if it was; damage is a `CheckpointError`."""
    path = path / FOLDER / FILE if path.is_dir() else path
    if not os.path.lexists(path):
        return None
    arrays = read_arrays(path, ("tasks", "layers", "groups", "pairs", "losses"), ("scores",))
    tasks, layers, groups = (tuple(arrays[name].tolist()) for name in ("tasks", "layers", "groups"))
    pairs = arrays["pairs"].astype(np.int64)
    return Ablation(tasks, layers, groups, pairs, arrays["losses"], arrays.get("scores"))


def read_arrays(
    path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Read arrays of an ``.npz`` file; one that is absent, or damage, is a `CheckpointError`."""
    try:
        arrays = load_arrays(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' is damaged ({error}). {_AGAIN}") from error
    absent = [name for name in names if name not in arrays]
    if absent:
        raise CheckpointError(f"'{path}' lacks {' and '.join(absent)}. {_AGAIN}")
    return {name: arrays[name] for name in (*names, *optional) if name in arrays}


_AGAIN = "Copy the whole folder again, or repeat the training command with --resume"
