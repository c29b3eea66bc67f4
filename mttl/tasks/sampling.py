"""Select the lines of few-shot samples, exactly as in CrossFit.

Two shuffles by numpy's `RandomState` depend only on the seed and the number of lines, so only
indices are shuffled:

1. If a task has no test split, its lines are shuffled with seed 42 and split into a pool and the
test file.
2. The pool is shuffled with the sample's seed. Text-to-text: the first `k` lines are train, the
next `k` dev. Classification: the same for each label, in order of first appearance.

References:
    Ye, Lin and Ren, CrossFit: A Few-shot Learning Challenge for Cross-task Generalization in NLP,
    EMNLP 2021, arXiv:2104.08835.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mttl.io.errors import TaskError
from mttl.tasks.task import Bound, Holdout, Task

SAMPLES = (100, 13, 21, 42, 87)
HOLDOUT_SEED = 42
MOST_TEXT_DEV = 1000

Indices = NDArray[np.int64]


class Line(tuple[str, ...]):
    """An input and its reference answers, with other columns of the record."""

    columns: Mapping[str, Any] = MappingProxyType({})


def shuffled(n: int, seed: int) -> Indices:
    """Return the indices of `n` lines, shuffled with a seed."""
    return np.random.RandomState(seed).permutation(n).astype(np.int64)


def cut(task: Task, n_train: int, n_test: int | None = None) -> tuple[Indices, Indices]:
    """Return the indices of the pool for samples in the train split, and of the test lines.

    Test lines are in the test split, or in the train split if there is none. Raises a `TaskError`
    if a split is empty, or a part would be.
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
    for side, indices in zip(("for samples", "for the test file"), found, strict=True):
        if not len(indices):
            lines = f"{n_train} lines of train"
            lines += "" if n_test is None else f" and {n_test} of test"
            raise TaskError(f"task '{task.name}': no line is left {side} of {lines}.")
    return found


def few_shot(task: Task, labels: Indices, pool: Indices, sample: int) -> tuple[Indices, Indices]:
    """Return the indices of the train and dev lines of a sample, in the order of the files.

    A task without `k` takes the whole pool; of raw text without a dev split, a tenth of it is dev,
    at most 1,000 lines. ``labels`` are numbers of all lines of a classification task, equal for
    equal outputs. Raises a `TaskError` if no line remains for dev, and the source has no dev split.
    """
    k = task.k
    if k is None:
        parted = task.kind == "text" and task.source.dev is None
        n_dev = min(MOST_TEXT_DEV, max(1, len(pool) // 10)) if parted else 0
        order = shuffled(len(pool), HOLDOUT_SEED)
        return pool[np.sort(order[n_dev:])], pool[np.sort(order[:n_dev])]
    order = pool[shuffled(len(pool), sample)]
    groups = [np.arange(len(order))]
    if task.kind == "classification":
        found = labels[order]
        present, first = np.unique(found, return_index=True)
        groups = [np.flatnonzero(found == label) for label in present[np.argsort(first)]]
    most = max(map(len, groups))
    if task.source.dev is None and k >= most:
        what = "all" if most == len(pool) else "all with the most frequent output"
        advice = f"set k below {most}" if most > 1 else "add lines"
        raise TaskError(
            f"task '{task.name}': k is {k}, so train would take {what} of the lines ({most}) and "
            f"leave none for dev; {advice}, or name separate lines with 'dev' in source"
        )
    train, dev = (np.concatenate([group[a:b] for group in groups]) for a, b in ((0, k), (k, 2 * k)))
    return order[train], order[dev]


def _place(bound: Bound, n: int) -> int:
    """Return the number of lines of a bound: a count, or a fraction of `n`."""
    return bound if isinstance(bound, int) else int(bound * n)
