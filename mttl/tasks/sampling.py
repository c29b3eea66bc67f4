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

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mttl.io.errors import TaskError
from mttl.tasks.md5_sums import published_sums
from mttl.tasks.task import Bound, Holdout, Task

SAMPLES = (100, 13, 21, 42, 87)
HOLDOUT_SEED = 42

_LOOKED_UP = re.compile(r"\{[^{}]*\|name1?\}")

Indices = NDArray[np.int64]
Line = tuple[str, ...]


class Labelled(Protocol):
    """Lines that give the labels of some of them on request."""

    def labels(self, indices: Indices) -> Indices:
        """Return a number per line, equal where the outputs are equal.

        The text ``task.labels[i]`` has the number `i`; other texts have numbers after those.
        """
        ...


class Cut(NamedTuple):
    """Indices of lines: of the train split, and of the test split (or of train, held out)."""

    pool: Indices
    test: Indices


def shuffled(n: int, seed: int) -> Indices:
    """Return the indices of `n` lines in the order of a seed."""
    return np.random.RandomState(seed).permutation(n).astype(np.int64)


def cut(task: Task, n_train: int, n_test: int | None = None) -> Cut:
    """Separate the lines that samples are drawn from, and those of the test file.

    Returns:
        The pool, as indices of the train split, and the test lines, as indices of the test split,
        or of the train split where there is no other.

    Raises:
        TaskError: If a split is empty, or a side of the cut would be.
    """
    source = task.source
    if n_test is None:
        found = _held_out(source.holdout or Holdout(), n_train)
    else:
        test = np.arange(n_test, dtype=np.int64)
        if source.test_share is not None:
            test = shuffled(n_test, HOLDOUT_SEED)[: int(source.test_share * n_test)]
        found = Cut(np.arange(n_train, dtype=np.int64), test)
    for side, indices in zip(("to draw from", "of the test file"), found, strict=True):
        if not len(indices):
            lines = f"{n_train} lines of train"
            lines += "" if n_test is None else f" and {n_test} of test"
            raise TaskError(f"task '{task.name}': no line {side} is left of {lines}.")
    return found


def labels_are_named(task: Task) -> bool:
    """Return whether outputs can be no others than the names in the task's labels."""
    return _LOOKED_UP.fullmatch(task.output) is not None


def few_shot(task: Task, lines: Labelled, pool: Indices, sample: int) -> tuple[Indices, Indices]:
    """Draw one sample.

    Args:
        task: Says how; one without a `k` takes the whole pool, in its order.
        lines: The lines of the train split; only labels of classification tasks are asked for,
            and no more of them than decide.
        pool: The lines to draw from, as from `cut`.
        sample: Its seed.

    Returns:
        The indices of the lines of train and of dev, in the order of the files.

    Raises:
        TaskError: If no line is left for dev, and dev has no lines of its own.
    """
    k = task.k
    if k is None:
        return pool, pool[:0]
    order = pool[shuffled(len(pool), sample)]
    if task.source.dev is None and k >= len(pool):
        raise _no_dev(task, len(pool), "all")
    if task.kind == "text-to-text":
        return order[:k], order[k : 2 * k]
    n_labels = len(task.labels) if labels_are_named(task) else 0
    n_read = 4 * k * n_labels or len(order)
    while True:
        labels = lines.labels(order[:n_read])
        counts = np.bincount(labels, minlength=n_labels)
        # With 2k lines of every label there is, later ones change nothing.
        decided = n_labels > 0 and counts.min() >= 2 * k
        if n_read >= len(order) or decided:
            break
        n_read *= 2
    present, first = np.unique(labels, return_index=True)
    by_label = [np.flatnonzero(labels == label) for label in present[np.argsort(first)]]
    most = max(map(len, by_label))
    if task.source.dev is None and k >= most:
        raise _no_dev(task, most, "all of the commonest output")
    train, dev = ([places[a:b] for places in by_label] for a, b in ((0, k), (k, 2 * k)))
    return order[np.concatenate(train)], order[np.concatenate(dev)]


def _no_dev(task: Task, n: int, what: str) -> TaskError:
    return TaskError(
        f"task '{task.name}': k is {task.k}, and train would take {what} of the lines to draw from "
        f"({n}), so that none is left for dev; k must be below {n}, or 'dev' in source name lines "
        "of its own"
    )


def draw(
    task: Task, train: Sequence[Line], test: Sequence[Line] | None, sample: int
) -> dict[str, list[Line]]:
    """Draw one sample from lines in memory."""
    pool, test_indices = cut(task, len(train), None if test is None else len(test))
    train_indices, dev_indices = few_shot(task, _InMemory(task, train), pool, sample)
    return {
        "train": [train[i] for i in train_indices],
        "dev": [train[i] for i in dev_indices],
        "test": [(train if test is None else test)[i] for i in test_indices],
    }


class LabelNumbers:
    """Numbers of outputs: those of the task's label names, then others as they come."""

    def __init__(self, task: Task):
        self._published = task.name in published_sums()
        self._numbers: dict[Line, int] = {(name,): i for i, name in enumerate(task.labels)}

    def __getitem__(self, outputs: Line) -> int:
        if not self._published:  # reading drops blanks around a text
            outputs = tuple(map(str.strip, outputs))
        return self._numbers.setdefault(outputs, len(self._numbers))


class _InMemory:
    def __init__(self, task: Task, lines: Sequence[Line]):
        numbers = LabelNumbers(task)
        self._labels = np.array([numbers[line[1:]] for line in lines], dtype=np.int64)

    def labels(self, indices: Indices) -> Indices:
        return self._labels[indices]


def _held_out(holdout: Holdout, n: int) -> Cut:
    order = shuffled(n, HOLDOUT_SEED)
    start = holdout.pool if holdout.test_start is None else holdout.test_start
    end = n if holdout.test_end is None else _place(holdout.test_end, n)
    return Cut(order[: _place(holdout.pool, n)], order[_place(start, n) : end])


def _place(bound: Bound, n: int) -> int:
    """Return where a bound lies among `n` lines: a number of them, or a share."""
    return bound if isinstance(bound, int) else int(bound * n)
