"""Measure how far skills that were trained apart bear being mixed.

    python scripts/benchmarks/member_mixing.py runs/library/private/seed13 [--tasks 7] [--rows 24]

The run has a skill of its own for every task (router/private.yaml). Some of its tasks, lying evenly
among all, answer test rows with rows of weights written by hand: their own skill at some weight,
and strangers, the skills of tasks that lie equally far apart. The same weights hold in all layers.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mttl.command import exit_with, positive
from mttl.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from mttl.build.model import Built

# Weights of the own skill and of strangers.
MIXTURES = ((1.0,), (0.5,), (0.75, 0.25), (0.5, 0.5), (1 / 3, 1 / 3, 1 / 3))


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="How far private skills bear being mixed.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run of router/private.yaml")
    parser.add_argument("--tasks", type=positive, default=7, help="that are asked (%(default)s)")
    parser.add_argument("--rows", type=positive, default=24, help="of each (%(default)s)")
    options = parser.parse_args(argv)
    table = Table(title="mean score over tasks, %")
    for name in ("own skill", "each stranger", "strangers", "score"):
        table.add_column(name, justify="right")
    for weights, score in mixed_scores(options.run, options.tasks, options.rows):
        own, *strangers = weights
        each = f"{strangers[0]:.2f}" if strangers else ""
        table.add_row(f"{own:.2f}", each, str(len(strangers)), f"{score:.1f}")
    Console().print(table)
    return 0


def mixed_scores(run: Path, n_tasks: int, n_rows: int) -> Iterator[tuple[tuple[float, ...], float]]:
    """Yield the mean score of some tasks of a private run under each of `MIXTURES`.

    Args:
        run: The folder of the run.
        n_tasks: Tasks to ask; all if there are fewer.
        n_rows: Test rows of each, of the first sample.

    Raises:
        CheckpointError: If the run has not one skill for each task.
    """
    from mttl.build.model import load_run
    from mttl.config.load import load_config
    from mttl.data.chosen_tasks import open_gym
    from mttl.metrics.crossfit import score_answers

    built, data = load_run(run), load_config([str(run / "config.yaml")]).data
    n_known = len(built.tasks)
    if (
        built.model.router.n_skills != n_known
        or built.model.router.matrix()[0, :, 0].trace() < n_known
    ):
        raise CheckpointError(f"'{run}' has not one skill for each task: train router/private.yaml")
    gym = open_gym(data)
    n_asked = min(n_tasks, n_known)
    tasks = [built.tasks[place * n_known // n_asked] for place in range(n_asked)]
    rows = {task: gym.rows(task, "test", data.samples[0], n_rows) for task in tasks}
    for weights in MIXTURES:
        with mixed(built, mixing_rows(n_known, weights)):
            scores = [
                score_answers(
                    gym.metric(task),
                    built.predict(task, [row.input for row in rows[task]]),
                    [row.outputs for row in rows[task]],
                )
                for task in tasks
            ]
        yield weights, 100 * sum(scores) / len(scores)


def mixing_rows(n_tasks: int, weights: Sequence[float]) -> "Tensor":
    """Return rows (T, T): each task has the first weight on its own skill, others further on."""
    import torch

    own = torch.eye(n_tasks)
    shifts = [place * n_tasks // len(weights) for place in range(len(weights))]
    parts = [weight * own.roll(shift, 1) for weight, shift in zip(weights, shifts, strict=True)]
    return torch.stack(parts).sum(0)


@contextmanager
def mixed(built: "Built", rows: "Tensor") -> Iterator[None]:
    """Route a run by given rows inside a ``with`` block."""
    from mttl.routing.task.fixed import FixedRouter

    router = built.model.router
    built.model.router = FixedRouter(rows, router.n_groups, router.n_heads)
    try:
        yield
    finally:
        built.model.router = router


if __name__ == "__main__":
    exit_with(main)
