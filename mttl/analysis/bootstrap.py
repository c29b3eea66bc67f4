"""Hierarchical bootstrap interval of a mean over tasks, seeds and few-shot samples."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int

# Task, fold, seed and few-shot sample of a score.
Key = tuple[str, int, int, int]
Name = TypeVar("Name", str, int)
N_DRAWS = 2000
SMALLEST_WIDTH = 1e-9  # relative to the ends; smaller widths are rounding errors
MOST_NUMBERS = 2**22  # per block of draws


def mean_and_interval(
    scores: Mapping[Key, float],
    *,
    level: float = 0.95,
    n_draws: int = N_DRAWS,
    draw_tasks: bool = True,
) -> tuple[float, float, float]:
    """Return the mean over tasks and its interval by a hierarchical bootstrap.

    Tasks are drawn with replacement, then the seeds of every fold, then the few-shot samples. All
    tasks of a fold share the drawn seeds, since they share trainings. The interval covers other
    tasks of this kind, or these tasks alone without ``draw_tasks``. Percentile intervals are too
    narrow for few tasks or seeds, by a factor of about √(1 - 1/n). With one seed the interval
    lacks the variation between trainings.

    Returns:
        The mean and the ends of the interval. The ends are NaN for a single score or equal draws;
        without scores, all three are NaN.
    """
    if not scores:
        return math.nan, math.nan, math.nan
    cells = table(scores)
    mean = mean_over_tasks(cells)
    if len(scores) == 1:
        return mean, math.nan, math.nan
    means = draw_means(cells, n_draws, np.random.default_rng(0), draw_tasks=draw_tasks)
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2])
    if high - low <= SMALLEST_WIDTH * max(abs(low), abs(high), 1.0):
        return mean, math.nan, math.nan
    return mean, float(low), float(high)


class Cells(NamedTuple):
    """Scores by task, fold and seed; each task has scores in F folds."""

    values: Float[np.ndarray, "T F S M"]  # padded at the end of the axes of seeds and samples
    counts: Int[np.ndarray, "T F S"]  # of samples
    folds: Int[np.ndarray, "T F"]  # of each task, from 0
    n_seeds: Int[np.ndarray, "A"]  # of each fold


def table(scores: Mapping[Key, float]) -> Cells:
    """Return scores as arrays."""
    tasks, folds, _, samples = (_places(names) for names in zip(*scores, strict=True))
    seeds = [_places(seed for _, own, seed, _ in scores if own == fold) for fold in folds]
    own: dict[str, dict[int, int]] = {task: {} for task in tasks}
    for task, fold, *_ in sorted(scores):
        own[task].setdefault(fold, len(own[task]))
    n_seeds = np.array([len(places) for places in seeds])
    shape = (len(tasks), max(map(len, own.values())), n_seeds.max())
    values, counts = np.zeros((*shape, len(samples))), np.zeros(shape, dtype=np.int64)
    folds_of = np.zeros(shape[:2], dtype=np.int64)
    for key in sorted(scores):
        task, fold, seed, _ = key
        cell = tasks[task], own[task][fold], seeds[folds[fold]][seed]
        values[*cell, counts[cell]] = scores[key]
        counts[cell] += 1
        folds_of[cell[:2]] = folds[fold]
    return Cells(values, counts, folds_of, n_seeds)


def _places(names: Iterable[Name]) -> dict[Name, int]:
    return {name: place for place, name in enumerate(sorted(set(names)))}


def task_means(
    values: Float[np.ndarray, "*D T F S M"], counts: Int[np.ndarray, "*D T F S"]
) -> Float[np.ndarray, "*D T"]:
    """Return the mean of every task over its trainings; NaN for a task without scores."""
    counted = np.arange(values.shape[-1]) < counts[..., None]
    cells = (values * counted).sum(-1) / np.maximum(counts, 1)
    with np.errstate(invalid="ignore"):
        return cells.sum((-1, -2)) / (counts > 0).sum((-1, -2))


def mean_over_tasks(cells: Cells) -> float:
    """Return the mean over tasks of the means over trainings."""
    return float(task_means(cells.values, cells.counts).mean())


def draw_means(
    cells: Cells, n_draws: int, rng: np.random.Generator, *, draw_tasks: bool = True
) -> Float[np.ndarray, "n_draws"]:
    """Return the means of ``n_draws`` bootstrap samples of tasks, seeds and few-shot samples."""
    values, counts, folds, n_seeds = cells
    n_tasks, n_own, most_seeds, n_samples = values.shape
    # A fold with fewer seeds than others draws as many as it has.
    drawn_seeds = np.arange(most_seeds) < n_seeds[:, None]
    own = np.arange(n_own)[:, None]
    found, left = [], n_draws
    while left:
        n = min(left, max(1, MOST_NUMBERS // values.size))
        left -= n
        tasks = np.tile(np.arange(n_tasks), (n, 1))
        if draw_tasks:
            tasks = rng.integers(n_tasks, size=(n, n_tasks))
        of_folds = rng.integers(n_seeds[:, None], size=(n, *drawn_seeds.shape))
        seeds = of_folds[np.arange(n)[:, None, None], folds[tasks]]
        place = tasks[:, :, None, None], own, seeds
        drawn, rows = counts[place] * drawn_seeds[folds[tasks]], values[place]
        if n_samples > 1:
            samples = (rng.random(rows.shape) * drawn[..., None]).astype(np.int64)
            rows = np.take_along_axis(rows, samples, -1)
        means = task_means(rows, drawn)
        with np.errstate(invalid="ignore"):
            known = ~np.isnan(means)
            found.append(np.where(known, means, 0).sum(1) / known.sum(1))
    return np.concatenate(found)
