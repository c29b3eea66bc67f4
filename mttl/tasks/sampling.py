"""Which lines of a task its few-shot samples hold, exactly as published.

Two shuffles decide, both of numpy's `RandomState`, whose order depends on the seed and the number
of lines alone. So only indices are shuffled, and whoever has them converts what they name:

1. Where a task has no test split of its own, its lines are shuffled with seed 42 and cut: a pool,
   and the test file.
2. The pool is shuffled with the sample's seed. Text-to-text: the first `k` lines are train, the
   next `k` dev. Classification: for each label, in the order in which the labels first appear, its
   first `k` lines are train and its next `k` dev.

References:
    Ye, Lin and Ren, CrossFit: A Few-shot Learning Challenge for Cross-task Generalization in NLP,
    EMNLP 2021, arXiv:2104.08835.
"""

import numpy as np
from numpy.typing import NDArray

from mttl.io.errors import TaskError
from mttl.tasks.task import Bound, Holdout, Task

SAMPLES = (100, 13, 21, 42, 87)
HOLDOUT_SEED = 42

Indices = NDArray[np.int64]
Line = tuple[str, ...]


def shuffled(n: int, seed: int) -> Indices:
    """Return the indices of `n` lines in the order of a seed."""
    return np.random.RandomState(seed).permutation(n).astype(np.int64)


def cut(task: Task, n_train: int, n_test: int | None = None) -> tuple[Indices, Indices]:
    """Separate the lines that samples are drawn from, and those of the test file.

    Returns:
        The pool, as indices of the train split, and the test lines, as indices of the test split,
        or of the train split where there is no other.

    Raises:
        TaskError: If a split is empty, or a side of the cut would be.
    """
    source = task.source
    if n_test is None:
        holdout, order = source.holdout or Holdout(), shuffled(n_train, HOLDOUT_SEED)
        start = holdout.pool if holdout.test_start is None else holdout.test_start
        end = n_train if holdout.test_end is None else _place(holdout.test_end, n_train)
        found = order[: _place(holdout.pool, n_train)], order[_place(start, n_train) : end]
    else:
        test = np.arange(n_test, dtype=np.int64)
        if source.test_share is not None:
            test = shuffled(n_test, HOLDOUT_SEED)[: int(source.test_share * n_test)]
        found = np.arange(n_train, dtype=np.int64), test
    for side, indices in zip(("to draw from", "of the test file"), found, strict=True):
        if not len(indices):
            lines = f"{n_train} lines of train"
            lines += "" if n_test is None else f" and {n_test} of test"
            raise TaskError(f"task '{task.name}': no line {side} is left of {lines}.")
    return found


def few_shot(task: Task, labels: Indices, pool: Indices, sample: int) -> tuple[Indices, Indices]:
    """Draw one sample from a pool; a task without a `k` takes all of it, in its order.

    Labels are numbers of all lines of a classification task, equal where the outputs are equal.

    Returns:
        The indices of the lines of train and of dev, in the order of the files.

    Raises:
        TaskError: If no line is left for dev, and dev has no lines of its own.
    """
    k = task.k
    if k is None:
        return pool, pool[:0]
    order = pool[shuffled(len(pool), sample)]
    groups = [np.arange(len(order))]
    if task.kind == "classification":
        found = labels[order]
        present, first = np.unique(found, return_index=True)
        groups = [np.flatnonzero(found == label) for label in present[np.argsort(first)]]
    most = max(map(len, groups))
    if task.source.dev is None and k >= most:
        what = "all" if most == len(pool) else "all of the commonest output"
        raise TaskError(
            f"task '{task.name}': k is {k}, and train would take {what} of the lines to draw from "
            f"({most}), so that none is left for dev; k must be below {most}, or 'dev' in source "
            "name lines of its own"
        )
    train, dev = (np.concatenate([group[a:b] for group in groups]) for a, b in ((0, k), (k, 2 * k)))
    return order[train], order[dev]


def _place(bound: Bound, n: int) -> int:
    """Return where a bound lies among `n` lines: a number of them, or a share."""
    return bound if isinstance(bound, int) else int(bound * n)
