"""What a task yields to no skill at all: exact match of two trivial answers."""

from collections import Counter

from derived_gym.item import Item


def copy_score(rows: list[Item]) -> float:
    """Return the share of rows, in percent, whose input is an accepted output."""
    return 100 * sum(row.input in row.outputs for row in rows) / len(rows)


def majority_score(train: list[Item], rows: list[Item]) -> float:
    """Return the share of rows, in percent, that the commonest answer of ``train`` is right for."""
    counts = Counter(row.outputs[0] for row in train)
    answer = max(sorted(counts), key=counts.__getitem__)
    return 100 * sum(answer in row.outputs for row in rows) / len(rows)
