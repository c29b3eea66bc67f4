"""Folds of a gym: every task is unseen once, and every category is spread over all folds."""

import random
from collections.abc import Mapping, Sequence

from mttl.errors import ConfigError
from mttl.tasks.partition import Partition


def chosen(n_folds: int | None, only: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of the folds that are run, from 1 on; without folds 0 alone.

    Args:
        n_folds: How many there are.
        only: Those of them that are wanted; all by default.

    Raises:
        ConfigError: If one is wanted that does not exist.
    """
    if n_folds is None:
        if only:
            raise ConfigError("--only-folds needs --folds, which says how many folds there are")
        return (0,)
    if only and (wrong := [number for number in only if number > n_folds]):
        raise ConfigError(
            f"--only-folds {wrong[0]} must lie between 1 and {n_folds}, the number of folds"
        )
    return tuple(dict.fromkeys(only or range(1, n_folds + 1)))


def deal(categories: Mapping[str, str], n_folds: int, seed: int) -> list[list[str]]:
    """Deal tasks like cards, category after category, each in an order drawn from a seed.

    Folds differ by one task at most, in all and within every category.

    Args:
        categories: Of every task.
        n_folds: How many folds.
        seed: Of the order.

    Raises:
        ConfigError: If there are fewer than two folds, or more than tasks.
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


def partitions(folds: Sequence[Sequence[str]], n_dev: int, seed: int) -> list[Partition]:
    """Return a partition per fold: its tasks are the test tasks, those of the others are trained.

    Args:
        folds: Tasks of every fold.
        n_dev: Development tasks to set aside in each, drawn from the fold after it.
        seed: Of that draw.

    Raises:
        ConfigError: If a fold has fewer tasks, or no task would be left to train.
    """
    rng = random.Random(seed)
    found = []
    for number, unseen in enumerate(folds):
        following = folds[(number + 1) % len(folds)]
        rest = [task for other in folds if other is not unseen for task in other]
        if n_dev > len(following) or n_dev >= len(rest):
            raise ConfigError(
                f"{n_dev} development tasks cannot be set aside from a fold of {len(following)} "
                "tasks; take fewer folds"
            )
        dev = rng.sample(list(following), n_dev)
        train = [task for task in rest if task not in dev]
        found.append(Partition(tuple(train), tuple(dev), tuple(unseen)))
    return found
