"""Episodes to a success rate over several seeds: mean and interval, or that it takes more."""

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


def interval(
    reached_at: Sequence[int | None], seen: Sequence[int], *, confidence: float = 0.95
) -> Interval:
    r"""Return the mean over seeds and its interval, ``mean ± t · s / √n``.

    Args:
        reached_at: Episodes at which each run got there; None if it never did.
        seen: Episodes each run saw in all: what is known of one that never got there.
        confidence: Of Student's t interval, between 0 and 1.

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
    if n_runs == 1 or n_reached < n_runs:
        return Interval(mean, math.nan, math.nan, n_runs, n_reached)
    half = student_quantile(confidence, n_runs - 1) * statistics.stdev(values) / math.sqrt(n_runs)
    return Interval(mean, mean - half, mean + half, n_runs, n_reached)


def student_quantile(confidence: float, freedom: int) -> float:
    r"""Return t such that a variable of Student's distribution lies in [-t, t] with a probability.

    Bisection on :math:`\theta = \arctan(t / \sqrt{n})`, in which the probability is a finite sum.

    Args:
        confidence: The probability, between 0 and 1.
        freedom: Degrees of freedom n, at least 1.

    Raises:
        ValueError: If either is out of range.

    References:
        Abramowitz and Stegun, *Handbook of Mathematical Functions*, 1964, 26.7.3 and 26.7.4.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence ({confidence}) must lie between 0 and 1")
    if freedom < 1:
        raise ValueError(f"freedom ({freedom}) must be at least 1")
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _probability_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(theta: float, freedom: int) -> float:
    odd = freedom % 2
    cosine = math.cos(theta)
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if odd else total
