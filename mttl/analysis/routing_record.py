"""Readers of a run's files about its routing.

| file | content |
|---|---|
| ``plots/routing.npz`` | ``weights`` and ``probabilities (G, T, K)``, ``tasks``, ``groups`` |
| ``plots/routing_history.npz`` | the same over training: ``steps (S,)``, ``weights (S, G, T, K)`` |
| ``metrics.csv`` | columns ``routing/…``: the statistics over training |

With several heads each head is a group. Probabilities are those of the router before
normalisation. Damaged files raise `CheckpointError`.

`mttl ablate` writes ``RUN/ablation/ablation.npz``: an `Ablation` of P parts of the network, and
``losses_before`` and ``scores_before (T,)``.
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
    """The routing of a run's kept checkpoint, by groups of layers."""

    folder: Path
    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    weights: Float[np.ndarray, "G T K"]
    probabilities: Float[np.ndarray, "G T K"]  # of using each skill, before normalisation
    history: RoutingHistory | None = None  # if the run recorded it
    curves: Curves = field(default_factory=dict)  # statistics over training


def read_record(folder: str | Path) -> RoutingRecord:
    """Return the routing of a run, from its files."""
    folder = Path(folder)
    path = folder / "plots" / "routing.npz"
    if not path.is_file():
        raise CheckpointError(
            f"'{path}' does not exist. Give the folder of a finished run; finish an interrupted "
            "one with --resume"
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
    """Return the mixing weights over a training or an adaptation, or None if not recorded."""
    path = folder / "plots" / "routing_history.npz"
    if not os.path.lexists(path):
        return None
    steps, weights = read_arrays(path, ("steps", "weights")).values()
    return RoutingHistory(steps, weights.astype(np.float64)) if len(steps) else None


def read_metrics(folder: Path) -> Curves:
    """Return the finite values of each column of ``metrics.csv``, with their steps."""
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
    """Changes of loss and score (if computed) when a skill is switched off in some layers."""

    tasks: tuple[str, ...]
    layers: tuple[str, ...]
    groups: tuple[str, ...]
    # Skills of every group in the common order, which numbers those switched off in all groups.
    pairs: Int[np.ndarray, "G K"]
    losses: Float[np.ndarray, "P T K"]  # higher is worse
    scores: Float[np.ndarray, "P T K"] | None  # lower is worse

    @property
    def quantity(self) -> str:
        """The quantity of `changes`: ``"loss"`` or ``"score"``."""
        return "loss" if self.scores is None else "score"

    @property
    def changes(self) -> Float[np.ndarray, "P T K"]:
        """The changes of the score in percentage points if it was computed, else of the loss."""
        return self.losses if self.scores is None else 100 * self.scores


def read_ablation(path: Path) -> Ablation | None:
    """Return the ablation of a run or file, or None; `CheckpointError` if it is damaged."""
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
    """Return arrays of an ``.npz`` file; `CheckpointError` if it is damaged or lacks a name."""
    try:
        arrays = load_arrays(path)
        return {name: arrays[name] for name in (*names, *(arrays.keys() & optional))}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"'{path}' is damaged ({error}). {_AGAIN}") from error


_AGAIN = "Copy the whole folder again, or repeat the training command with --resume"
