"""Folds of a gym: every task is unseen once, and every category is spread over all folds."""

import random
from collections.abc import Mapping, Sequence

from mttl.io.errors import ConfigError
from mttl.tasks.partition import Partition


def split_folds(categories: Mapping[str, str], n_folds: int, seed: int) -> list[list[str]]:
    """Split tasks into folds, category after category, each in an order drawn from a seed.

    The sizes of folds differ by one task at most, in all and within every category.
    """
    if not 2 <= n_folds <= len(categories):
        raise ConfigError(
            f"--folds {n_folds} must lie between 2 and {len(categories)}, the number of tasks"
        )
    groups: dict[str, list[str]] = {}
    for task in sorted(categories):
        groups.setdefault(categories[task], []).append(task)
    rng = random.Random(seed)
    cards = [task for _, group in sorted(groups.items()) for task in rng.sample(group, len(group))]
    return [cards[number::n_folds] for number in range(n_folds)]


def partitions(folds: Sequence[Sequence[str]]) -> list[Partition]:
    """Return a partition per fold: its tasks are unseen, those of the others are trained."""
    return [
        Partition(
            train=tuple(task for other in folds if other is not unseen for task in other),
            test=tuple(unseen),
        )
        for unseen in folds
    ]
