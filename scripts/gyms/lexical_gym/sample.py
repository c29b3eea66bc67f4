"""Draw a task's examples into the rows of its files."""

import random
from collections import Counter
from collections.abc import Iterable
from math import ceil

from derived_gym.item import Item
from derived_gym.pools import pools

from lexical_gym.tasks import LexicalTask

TRAIN_ROWS = 1500
DEV_ROWS = 64
TEST_ROWS = 200
FEW_SHOTS = 32
FEW_SHOT_SAMPLES = (100, 13, 21, 42, 87)
TRAIN_SAMPLE = 100

Files = dict[str, list[Item]]


def draw(task: LexicalTask, items: Iterable[Item]) -> Files:
    """Draw all files of a task: file name -> rows.

    A training task has one sample: up to 1500 rows to train on, 64 dev and 200 test rows. A dev
    or test task has five samples of 32 train and 32 dev rows, and one test file, repeated.

    Args:
        task: The task.
        items: All its examples; those with the same input are one, with all their outputs.

    Raises:
        ValueError: If dev or test rows are too few.
    """
    found = pools(items)
    test = _take(task, found["test"], TEST_ROWS, "test", exact=True)
    if task.role == "train":
        train = _take(task, found["train"], TRAIN_ROWS, "train")
        dev = _take(task, found["dev"], DEV_ROWS, "dev", exact=True)
        stem = f"{task.name}_{len(train)}_{TRAIN_SAMPLE}"
        return {f"{stem}_train.tsv": train, f"{stem}_dev.tsv": dev, f"{stem}_test.tsv": test}
    files = {}
    for sample in FEW_SHOT_SAMPLES:
        stem = f"{task.name}_{FEW_SHOTS}_{sample}"
        for split in ("train", "dev"):
            rows = _take(task, found[split], FEW_SHOTS, f"{split}/{sample}", exact=True)
            files[f"{stem}_{split}.tsv"] = rows
        files[f"{stem}_test.tsv"] = test
    return files


def _take(
    task: LexicalTask, pool: list[Item], n: int, seed: str, *, exact: bool = False
) -> list[Item]:
    """Draw up to ``n`` items, no answer more often than the task's share allows."""
    rng = random.Random(f"{task.name}/{seed}")
    order = rng.sample(pool, len(pool))
    limit = ceil(task.label_share * n)
    counts: Counter[str] = Counter()
    chosen: list[Item] = []
    for item in order:
        if len(chosen) < n and counts[item.outputs[0]] < limit:
            counts[item.outputs[0]] += 1
            chosen.append(item)
    if exact and len(chosen) < n:
        raise ValueError(f"{task.name}: {len(chosen)} of {n} {seed} rows; it has too few examples.")
    # Labels that ran full early would otherwise be missing from the last rows.
    return rng.sample(chosen, len(chosen))
