"""Samples are drawn as CrossFit draws them: against its recipe as a plain program over lines."""

import random

import numpy as np
import pytest

from helpers.raw import copying_task, make_task
from mttl.io.errors import TaskError
from mttl.tasks.sampling import SAMPLES, cut, few_shot, shuffled
from mttl.tasks.task import Holdout, Source

LABELS = ("red", "green", "blue")


def plain(task, train, test, sample):
    """The recipe in words, on lists of lines."""
    train, k = list(train), task.k
    if test is None:
        np.random.RandomState(42).shuffle(train)
        n = int(0.8 * len(train))
        train, test = train[:n], train[n:]
    np.random.RandomState(sample).shuffle(train)
    if task.kind == "text-to-text":
        return {"train": train[:k], "dev": train[k : 2 * k], "test": test}
    by_label = {}
    for line in train:
        by_label.setdefault(line[1], []).append(line)
    return {
        "train": [line for lines in by_label.values() for line in lines[:k]],
        "dev": [line for lines in by_label.values() for line in lines[k : 2 * k]],
        "test": test,
    }


def lines(n, labels=LABELS, weights=None):
    draws = random.Random(0).choices(labels, weights, k=n)
    return [(f"text {i}", label) for i, label in enumerate(draws)]


def draw(task, train, test, sample):
    pool, held_out = cut(task, len(train), None if test is None else len(test))
    labels = np.unique([line[1] for line in train], return_inverse=True)[1]
    few = few_shot(task, labels, pool, sample)
    found = {split: [train[i] for i in at] for split, at in zip(("train", "dev"), few, strict=True)}
    return found | {"test": [(train if test is None else test)[i] for i in held_out]}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(("n", "weights"), [(20, None), (1000, None), (600, (300, 300, 1))])
def test_classification(sample, n, weights):
    task, train, test = make_task(k=4), lines(n, weights=weights), lines(5)
    assert draw(task, train, test, sample) == plain(task, train, test, sample)


def test_text_to_text_with_test_lines_held_out():
    task = copying_task(k=8)
    train = [(f"text {i}", f"answer {i}", "another") for i in range(101)]
    found = draw(task, train, None, 13)
    assert found == plain(task, train, None, 13)
    assert [len(found[split]) for split in ("train", "dev", "test")] == [8, 8, 21]
    assert len({line[0] for split in found.values() for line in split}) == 37


def test_cuts_that_differ():
    """The rows of amazon_polarity, of lama-trex, and a share of a test split."""
    fixed = Source("x", train="train", holdout=Holdout(pool=50, test_start=50, test_end=60))
    order = shuffled(100, 42)
    pool, test = cut(make_task(source=fixed), 100)
    assert pool.tolist() == order[:50].tolist()
    assert test.tolist() == order[50:60].tolist()

    gap = Source("x", train="train", holdout=Holdout(pool=0.8, test_start=0.99))
    pool, test = cut(make_task(source=gap), 1000)
    assert (len(pool), len(test)) == (800, 10)
    assert test.tolist() == shuffled(1000, 42)[990:].tolist()

    share = Source("x", train="train", test="test", test_share=0.1)
    pool, test = cut(make_task(source=share), 5, 99)
    assert pool.tolist() == [0, 1, 2, 3, 4]
    assert test.tolist() == shuffled(99, 42)[:9].tolist()


@pytest.mark.parametrize(
    ("task", "sizes", "message"),
    [
        (make_task, (0, 5), "'colours': no line is left for samples of 0 lines of train and 5"),
        (make_task, (5, 0), "no line is left for the test file of 5 lines of train and 0"),
        (copying_task, (1,), "'copying': no line is left for samples of 1 lines of"),
    ],
)
def test_empty_sides(task, sizes, message):
    with pytest.raises(TaskError, match=message):
        cut(task(), *sizes)
