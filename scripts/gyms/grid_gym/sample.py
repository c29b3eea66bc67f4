"""Draw a task's examples into the rows of its files."""

import random
from collections.abc import Iterable

from derived_gym.item import Item
from derived_gym.pools import pools

TRAIN_ROWS = 64
DEV_ROWS = 16
TEST_ROWS = 100
SAMPLES = (100, 13, 21, 42, 87)

Files = dict[str, list[Item]]


def draw(name: str, items: Iterable[Item]) -> Files:
    """Draw all files of a task: file name -> rows.

    Every task has five samples, so that any partition can train, develop or test on it. Their
    training rows are disjoint, their test rows the same.

    Args:
        name: Of the task.
        items: All its examples.

    Raises:
        ValueError: If there are too few.
    """
    found = pools(items)
    test = _take(name, found["test"], TEST_ROWS, "test")
    train = _take(name, found["train"], TRAIN_ROWS * len(SAMPLES), "train")
    files = {}
    for place, sample in enumerate(SAMPLES):
        stem = f"{name}_{TRAIN_ROWS}_{sample}"
        files[f"{stem}_train.tsv"] = train[place * TRAIN_ROWS : (place + 1) * TRAIN_ROWS]
        files[f"{stem}_dev.tsv"] = _take(name, found["dev"], DEV_ROWS, f"dev/{sample}")
        files[f"{stem}_test.tsv"] = test
    return files


def _take(name: str, pool: list[Item], n: int, seed: str) -> list[Item]:
    if len(pool) < n:
        raise ValueError(f"{name}: {len(pool)} of {n} {seed} rows; it has too few examples.")
    return random.Random(f"{name}/{seed}").sample(pool, n)
