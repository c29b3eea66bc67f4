"""Learning curves of policies: read from runs, and as tables."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.intervals import Interval, interval
from comparison.tables import markdown
from mttl.errors import MttlError
from mttl.reading import read_table, to_number

if TYPE_CHECKING:
    import numpy as np

REFERENCE = "shared"
# Fragments of every method, on top of the common configuration, which is Polytropon's.
METHODS: dict[str, tuple[str, ...]] = {
    "polytropon": (),
    "polytropon_ibp": ("babyai/polytropon_ibp.yaml",),
    "dense": ("babyai/dense.yaml",),
    "shared": ("babyai/shared.yaml",),
    "private": ("babyai/private.yaml",),
    "expert": ("babyai/expert.yaml",),
}


@dataclass(frozen=True)
class Curve:
    """How one run learned, a row per rollout.

    Attributes:
        levels: Names of the levels.
        frames: Of all levels, at each row.
        episodes: Of all levels.
        rates: Success rate of each level over its last episodes; NaN before there were enough.
        final: Success rate of each level on the episodes of evaluation, greedy.
        minutes: Processor time.
        n_trained: Parameters that were trained.
    """

    levels: tuple[str, ...]
    frames: "np.ndarray"
    episodes: "np.ndarray"
    rates: "np.ndarray"
    final: dict[str, float]
    minutes: float
    n_trained: int


def read_curve(run: Path, minutes: float, n_trained: int) -> Curve:
    """Read what a run wrote down about its learning.

    Args:
        run: Its folder, with ``metrics.csv`` and ``results.csv``.
        minutes: What it cost.
        n_trained: Parameters that it trained.
    """
    import numpy as np

    columns = ["task", "sample", "metric", "score"]
    final = {
        row["task"]: to_number(row["score"], f"'{run / 'results.csv'}': a score", MttlError)
        for row in read_table(run / "results.csv", MttlError, columns)
        if (row["sample"], row["metric"]) == ("greedy", "success")
    }
    metrics = read_table(run / "metrics.csv", MttlError, ["frames", "episodes"])
    rows = [row for row in metrics if row["frames"]]
    levels = tuple(level for level in final if level != "mean")
    rates = [[float(row.get(f"success/{level}") or "nan") for level in levels] for row in rows]
    return Curve(
        levels,
        frames=np.array([float(row["frames"]) for row in rows]).astype(int),
        episodes=np.array([float(row["episodes"]) for row in rows]).astype(int),
        rates=np.array(rates),
        final=final,
        minutes=minutes,
        n_trained=n_trained,
    )


def needed(curves: Sequence[Curve], rate: float, smoothing: int) -> Interval:
    """Return the episodes of all levels until the mean rate over levels was reached."""
    from mttl.babyai.rl.learning_curve import episodes_to  # it brings PyTorch

    reached = [
        episodes_to(curve.episodes, curve.rates, threshold=rate, smoothing=smoothing)
        for curve in curves
    ]
    return interval(reached, [int(curve.episodes[-1]) for curve in curves])


def efficiency_table(
    curves: Mapping[str, Sequence[Curve]], reference: str, rate: float, smoothing: int
) -> str:
    """Return a row per method: parameters, episodes, their ratio to the reference, final rate."""
    found = {method: needed(runs, rate, smoothing) for method, runs in curves.items()}
    heads = ("method", "trained", f"episodes to {rate:.0%}", f"× {reference}")
    rows = []
    for method, runs in curves.items():
        own, theirs = found[method], found.get(reference)
        both = theirs is not None and all(x.n_reached == x.n_runs for x in (own, theirs))
        ratio = f"{own.mean / theirs.mean:.2f}" if theirs is not None and both else ""
        success = 100 * statistics.fmean(run.final["mean"] for run in runs)
        minutes = statistics.fmean(run.minutes for run in runs)
        cells = (f"{runs[0].n_trained:,}", str(own), ratio, f"{success:.1f}", f"{minutes:.1f}")
        rows.append((method, *cells))
    return markdown((*heads, "greedy success", "CPU min"), rows)


def level_table(curves: Mapping[str, Sequence[Curve]], rate: float, smoothing: int) -> str:
    """Return a row per level and a column per method: episodes of all levels until it was learned.

    A level that a seed did not learn shows how many seeds did.
    """
    from mttl.babyai.rl.learning_curve import episodes_to

    levels = next(iter(curves.values()))[0].levels
    rows = []
    for column, level in enumerate(levels):
        cells = []
        for runs in curves.values():
            reached = [
                episodes_to(
                    run.episodes,
                    run.rates[:, column : column + 1],
                    threshold=rate,
                    smoothing=smoothing,
                )
                for run in runs
            ]
            known = [episodes for episodes in reached if episodes is not None]
            share = "" if len(known) == len(runs) else f" ({len(known)} of {len(runs)})"
            cells.append(f"{statistics.fmean(known):,.0f}{share}" if known else "–")
        rows.append((level, *cells))
    return markdown(("level", *curves), rows)


def levels_csv(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Return all learning curves as CSV: method, run, episodes, frames, level, success."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["method", "run", "episodes", "frames", "level", "success"])
    for method, runs in curves.items():
        for number, run in enumerate(runs):
            for episodes, frames, rates in zip(run.episodes, run.frames, run.rates, strict=True):
                for level, rate in zip(run.levels, rates, strict=True):
                    if not math.isnan(rate):
                        writer.writerow([method, number, episodes, frames, level, f"{rate:.4f}"])
    return text.getvalue()
