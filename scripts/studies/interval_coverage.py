"""How often the 95 % intervals of comparisons hold the truth, by numbers of tasks and seeds.

    python scripts/studies/interval_coverage.py [--comparisons 400]

Scores are simulated around a true difference of 0: tasks differ by 1, trainings by 0.3 for all of
their tasks at once, few-shot samples by 0.5. Shares have a standard error of about 0.015.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mttl.commands.options import positive

if TYPE_CHECKING:
    from mttl.analysis.bootstrap import Key

N_DRAWS = 400


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Coverage of intervals, by seeds and tasks.")
    add = parser.add_argument
    add("--comparisons", type=positive, default=400, help="simulated for each cell (%(default)s)")
    add("--tasks", type=positive, nargs="+", default=[8, 40], help="(%(default)s)")
    add("--seeds", type=positive, nargs="+", default=[1, 2, 3, 5], help="(%(default)s)")
    options = parser.parse_args(argv)
    table = Table(title=f"share of {options.comparisons} intervals that hold the truth")
    table.add_column("tasks", justify="right")
    for n_seeds in options.seeds:
        table.add_column(f"seeds: {n_seeds}", justify="right")
    for n_tasks in options.tasks:
        shares = [
            covered(options.comparisons, n_tasks=n_tasks, n_seeds=n_seeds)
            for n_seeds in options.seeds
        ]
        table.add_row(str(n_tasks), *(f"{share:.2f}" for share in shares))
    Console().print(table)
    return 0


def covered(n_comparisons: int, *, seed: int = 0, **sizes: Any) -> float:
    """Return the share of simulated comparisons whose interval holds the true difference.

    Args:
        n_comparisons: How many.
        seed: Of the simulation.
        **sizes: As for `simulated`.
    """
    from mttl.analysis.bootstrap import mean_and_interval

    rng = np.random.default_rng(seed)
    held = 0
    for _ in range(n_comparisons):
        _, low, high = mean_and_interval(simulated(rng, **sizes), n_draws=N_DRAWS)
        held += low <= 0 <= high
    return held / n_comparisons


def simulated(
    rng: np.random.Generator,
    *,
    n_tasks: int = 40,
    n_folds: int = 1,
    n_seeds: int = 3,
    n_samples: int = 2,
    spread: tuple[float, float, float] = (1.0, 0.3, 0.5),
) -> "dict[Key, float]":
    """Return scores around 0 of tasks that are unseen in one fold each."""
    of_training = spread[1] * rng.standard_normal((n_folds, n_seeds))
    scores: dict[Key, float] = {}
    for task in range(n_tasks):
        of_task, fold = spread[0] * rng.standard_normal(), task % n_folds
        for seed in range(n_seeds):
            for sample in range(n_samples):
                noise = spread[2] * rng.standard_normal()
                key = (f"{task:03}", fold, seed, sample)
                scores[key] = of_task + of_training[fold, seed] + noise
    return scores


if __name__ == "__main__":
    sys.exit(main())
