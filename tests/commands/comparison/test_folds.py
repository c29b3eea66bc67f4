"""Folds: every task is unseen once, and no category is bunched."""

from collections import Counter

import pytest

from helpers.command import ROOT
from mttl.commands.comparison.folds import partitions, split_folds
from mttl.config.load import configs_dir
from mttl.io.errors import ConfigError
from mttl.tasks.folder import Gym
from mttl.tasks.partition import load_partition

LEXICAL = load_partition(configs_dir() / "partitions" / "lexical.json")
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


def test_a_task_is_trained_or_unseen() -> None:
    folds = split_folds(CATEGORIES, 5, seed=13)
    for fold, own in zip(folds, partitions(folds), strict=True):
        assert list(own.test) == fold
        assert sorted((*own.train, *own.test)) == sorted(CATEGORIES)


def test_mistakes_are_answered() -> None:
    for n_folds in (1, 4):
        with pytest.raises(ConfigError, match=rf"--folds {n_folds} must lie between 2 and 3"):
            split_folds({"a": "x", "b": "x", "c": "y"}, n_folds, seed=1)
