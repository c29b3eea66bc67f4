"""The files of a run about its routing.

| file | content |
|---|---|
| ``plots/routing.npz`` | ``weights`` and ``probabilities (G, T, K)``, ``tasks``, ``groups`` |
| ``plots/routing_history.npz`` | the same over training: ``steps (S,)``, ``weights (S, G, T, K)`` |
| ``metrics.csv`` | columns ``routing/…``: the statistics over training |

With several heads each head is a group. Probabilities are what the router says of itself before it
normalises.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from envs.files import load_arrays
from mttl.analysis.layers import ACTIVE
from mttl.io.errors import CheckpointError
from mttl.io.reading import read_table

PREFIX = "routing/"
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
        folder: The run's.
        tasks: Names of the tasks.
        groups: Names of the groups of layers.
        weights: Mixing weights of the weights that the run kept.
        history: How they came about, if the run recorded it.
        curves: The statistics over training, by name (``discreteness``, ``encoder/usage`` …).
        probabilities: How likely each task is to use each skill; None for a table of tokens.
    """

    folder: Path
    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    weights: Float[np.ndarray, "G T K"]
    history: RoutingHistory | None
    curves: Curves
    probabilities: Float[np.ndarray, "G T K"] | None = None


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
    arrays = read_arrays(path, ("weights", "probabilities", "tasks", "groups"))
    weights, probabilities = arrays["weights"], arrays["probabilities"]
    return RoutingRecord(
        folder=folder,
        tasks=tuple(arrays["tasks"].tolist()),
        groups=tuple(arrays["groups"].tolist()),
        weights=weights.astype(np.float64),
        history=_read_history(path.with_name("routing_history.npz")),
        curves={
            name.removeprefix(PREFIX).replace("active_cells", ACTIVE): curve
            for name, curve in read_metrics(folder).items()
            if name.startswith(PREFIX)
        },
        probabilities=probabilities.astype(np.float64),
    )


def _read_history(path: Path) -> RoutingHistory | None:
    if not os.path.lexists(path):
        return None
    arrays = read_arrays(path, ("steps", "weights"))
    steps, weights = arrays["steps"], arrays["weights"]
    return RoutingHistory(steps, weights.astype(np.float64)) if len(steps) else None


def read_adaptation_history(folder: Path) -> RoutingHistory | None:
    """Read how the row of an adapted task came about, if it was written down."""
    return _read_history(folder / "plots" / "routing_history.npz")


def read_metrics(folder: Path) -> Curves:
    """Return the columns of ``metrics.csv`` over the steps; only finite values are kept.

    Raises:
        CheckpointError: If the file is damaged.
    """
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


def read_arrays(
    path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Read arrays of an ``.npz`` file.

    Raises:
        CheckpointError: If one is absent or the file is damaged.
    """
    try:
        arrays = load_arrays(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' is damaged ({error}). {_AGAIN}") from error
    absent = [name for name in names if name not in arrays]
    if absent:
        raise CheckpointError(f"'{path}' lacks {' and '.join(absent)}. {_AGAIN}")
    return {name: arrays[name] for name in (*names, *optional) if name in arrays}


_AGAIN = (
    "Copy the whole folder again from where it was written, or write it again: repeat the training "
    "command with --resume"
)
