"""Means over seeds and their intervals; or, of episodes to a success rate, that it takes more."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A mean over runs and the ends of its interval.

    Attributes:
        mean: Over runs. If one never got there, a lower bound: the mean with what it had seen.
        low: Lower end of the interval; NaN with a single run, or if one never got there.
        high: Upper end of it.
        n_runs: How many runs there are.
        n_reached: How many of them got there.
    """

    mean: float
    low: float
    high: float
    n_runs: int
    n_reached: int

    def __str__(self) -> str:
        """Write the numbers as text, such as ``> 6,000,000 (3 of 5 runs)``."""
        runs = "1 run" if self.n_runs == 1 else f"{self.n_runs} runs"
        if self.n_reached < self.n_runs:
            return f"> {self.mean:,.0f} ({self.n_reached} of {runs})"
        if math.isnan(self.low):
            return f"{self.mean:,.0f} ({runs})"
        return f"{self.mean:,.0f} [{self.low:,.0f}, {self.high:,.0f}] ({runs})"


def interval(reached_at: Sequence[int | None], seen: Sequence[int]) -> Interval:
    """Return the mean over seeds and its 95 % interval.

    Args:
        reached_at: Episodes at which each run got there; None if it never did.
        seen: Episodes each run saw in all: what is known of one that never got there.

    Raises:
        ValueError: If there is no run, the lengths differ, or a run got there after its last
            episode.
    """
    if not reached_at or len(reached_at) != len(seen):
        raise ValueError(
            f"reached_at has {len(reached_at)} runs and seen has {len(seen)}; both must have the "
            "same runs, and at least one"
        )
    for run, (at, last) in enumerate(zip(reached_at, seen, strict=True)):
        if at is not None and at > last:
            raise ValueError(f"run {run} cannot reach the rate at {at} if it saw {last} episodes")
    values = [last if at is None else at for at, last in zip(reached_at, seen, strict=True)]
    n_runs, n_reached = len(values), sum(at is not None for at in reached_at)
    mean = statistics.fmean(values)
    half = half_width(values) if n_reached == n_runs else math.nan
    return Interval(mean, mean - half, mean + half, n_runs, n_reached)


def half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return half the width of Student's interval of a mean, ``t · s / √n``.

    NaN of one value, and of values that are all alike: they do not tell what varies.
    """
    if len(set(values)) == 1:
        return math.nan
    from scipy import stats  # an optional library

    quantile = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
