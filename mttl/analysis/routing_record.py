"""The files of a run about its routing.

| file | content |
|---|---|
| ``plots/routing.npz`` | ``weights`` and ``probabilities (G, T, K)``, ``tasks``, ``groups`` |
| ``plots/routing_history.npz`` | the same over training: ``steps (S,)``, ``weights (S, G, T, K)`` |
| ``metrics.csv`` | columns ``routing/…``: the statistics over training |

With several heads each head is a group. Probabilities are what the router says of itself before it
normalises; files of earlier versions have none.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from envs.array_file import load_arrays
from mttl.analysis.layers import ACTIVE
from mttl.errors import CheckpointError
from mttl.reading import check_name, read_table

PREFIX = "routing/"
# What figures call columns; the second is that of earlier versions.
CALLED = {"active_cells": ACTIVE, "sparsity": ACTIVE}
Curves = dict[str, tuple[np.ndarray, np.ndarray]]  # name -> steps and values


@dataclass(frozen=True)
class RoutingHistory:
    """The mixing weights over training.

    Attributes:
        steps: When they were recorded, in ascending order.
        weights: What they were.
    """

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
        probabilities: How likely each task is to use each skill, if the run wrote it down.
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
        CheckpointError: If the run has no ``plots/routing.npz``, or a file is damaged or does not
            fit the others.
    """
    folder = Path(folder)
    path = folder / "plots" / "routing.npz"
    if not path.is_file():
        raise CheckpointError(
            f"'{path}' does not exist. Give the folder of a run that has ended: training writes "
            "this file last. An interrupted run is finished with --resume"
        )
    arrays = read_arrays(path, ("weights", "tasks", "groups"), optional=("probabilities",))
    weights = arrays["weights"]
    tasks, groups = (read_names(path, arrays[name]) for name in ("tasks", "groups"))
    expected = (len(groups), len(tasks))
    if weights.ndim != 3 or weights.shape[:2] != expected or not weights.shape[2]:
        raise CheckpointError(
            f"'{path}' has weights of shape {weights.shape}; its {expected[0]} groups and "
            f"{expected[1]} tasks make it ({expected[0]}, {expected[1]}, skills). {_AGAIN}"
        )
    _check_finite(path, weights)
    probabilities = arrays.get("probabilities")
    if probabilities is not None:
        if probabilities.shape != weights.shape:
            raise CheckpointError(
                f"'{path}' has probabilities of shape {probabilities.shape} and weights of shape "
                f"{weights.shape}; they must be alike. {_AGAIN}"
            )
        _check_finite(path, probabilities)
    return RoutingRecord(
        folder=folder,
        tasks=tasks,
        groups=groups,
        weights=weights.astype(np.float64),
        history=_read_history(path.with_name("routing_history.npz"), weights.shape),
        curves=_read_curves(folder / "metrics.csv"),
        probabilities=None if probabilities is None else probabilities.astype(np.float64),
    )


def _read_history(path: Path, shape: tuple[int, ...]) -> RoutingHistory | None:
    if not os.path.lexists(path):
        return None
    arrays = read_arrays(path, ("steps", "weights"))
    steps, weights = arrays["steps"], arrays["weights"]
    if steps.dtype.kind not in "iu":
        raise CheckpointError(f"'{path}' has steps of type {steps.dtype}. {_AGAIN}")
    if steps.ndim != 1 or weights.shape != (len(steps), *shape):
        raise CheckpointError(
            f"'{path}' has weights of shape {weights.shape}; {steps.size} steps of the weights in "
            f"routing.npz make it {(steps.size, *shape)}. Are both files of one run? {_AGAIN}"
        )
    _check_finite(path, weights)
    return RoutingHistory(steps, weights.astype(np.float64)) if len(steps) else None


def read_course(folder: Path, shape: tuple[int, int]) -> RoutingHistory | None:
    """Read how the row of an adapted task came about, if it was written down.

    Args:
        folder: Of the adapted task.
        shape: Groups and skills of the run that it was adapted from.
    """
    return _read_history(folder / "plots" / "routing_history.npz", (shape[0], 1, shape[1]))


def _read_curves(path: Path) -> Curves:
    """Read the columns ``routing/…``; steps without a value are left out."""
    if not os.path.lexists(path):
        return {}
    points: dict[str, list[tuple[int, float]]] = {}
    try:
        for row in read_table(path, CheckpointError, ["step"]):
            for name, value in row.items():
                if name.startswith(PREFIX) and value:
                    point = int(row["step"]), float(value)
                    if not 0 <= point[0] < 2**63:
                        raise ValueError(f"the step {point[0]} is no step")
                    stack, slash, column = name.removeprefix(PREFIX).rpartition("/")
                    curve = f"{stack}{slash}{CALLED.get(column, column)}"
                    points.setdefault(curve, []).append(point)
    except ValueError as error:
        raise CheckpointError(f"'{path}' is damaged ({error}). {_AGAIN}") from error
    return {
        name: (np.array([step for step, _ in found]), np.array([value for _, value in found]))
        for name, found in points.items()
    }


def read_arrays(
    path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Read arrays of an ``.npz`` file.

    Args:
        path: The file.
        names: What it must hold.
        optional: What it may hold.

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


def read_names(path: Path, array: np.ndarray) -> tuple[str, ...]:
    """Return an array of names.

    Args:
        path: Where it is from.
        array: What should hold names.

    Raises:
        CheckpointError: If it holds something else.
    """
    if array.dtype.kind != "U":
        raise CheckpointError(f"'{path}' has names of type {array.dtype}. {_AGAIN}")
    names = array.ravel().tolist()
    return tuple(check_name(name, f"'{path}': a name", CheckpointError) for name in names)


def _check_finite(path: Path, weights: np.ndarray) -> None:
    if weights.dtype.kind not in "iuf" or not np.isfinite(weights).all():
        raise CheckpointError(f"'{path}' has weights that are no finite numbers. {_AGAIN}")


_AGAIN = (
    "Copy the whole folder again from where it was written, or write it again: repeat the training "
    "command with --resume"
)
