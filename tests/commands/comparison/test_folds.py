"""Folds: every task is unseen once, and no category is bunched."""

from collections import Counter

import pytest

from helpers.command import ROOT
from mttl.commands.comparison.folds import split_folds
from mttl.config.load import configs_dir
from mttl.tasks.folder import Gym
from mttl.tasks.partition import Partition

LEXICAL = Partition.read(configs_dir() / "partitions" / "lexical.json")
GYM = Gym(ROOT / "data" / "lexical")
CATEGORIES = {
    task: GYM.category(task) for side in ("train", "dev", "test") for task in getattr(LEXICAL, side)
}


@pytest.mark.parametrize("n_folds", [2, 5, 7, 45])
def test_every_task_is_unseen_once_and_categories_are_spread(n_folds: int) -> None:
    folds = split_folds(CATEGORIES, n_folds, seed=13)
    assert sorted(task for fold in folds for task in fold) == sorted(CATEGORIES)
    sizes = [len(fold) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    counts = [Counter(CATEGORIES[task] for task in fold) for fold in folds]
    for category in set(CATEGORIES.values()):
        own = [count[category] for count in counts]
        assert max(own) - min(own) <= 1


def test_folds_depend_on_the_seed_alone() -> None:
    backwards = dict(reversed(CATEGORIES.items()))
    assert split_folds(backwards, 5, seed=13) == split_folds(CATEGORIES, 5, seed=13)
    assert split_folds(CATEGORIES, 5, seed=14) != split_folds(CATEGORIES, 5, seed=13)
