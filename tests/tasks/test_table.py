import json
from collections import Counter
from pathlib import Path

import pytest

from helpers.fact_templates import facts, labels_of
from mttl.io.errors import TaskError
from mttl.metrics.crossfit import METRICS
from mttl.metrics.metric_names import METRIC_NAMES
from mttl.tasks.partition import Partition
from mttl.tasks.table import crossfit, metric_of
from mttl.tasks.task import Holdout

PARTITIONS = Path(__file__).parents[2] / "configs/partitions"
SIZES = {
    "random": (120, 20, 20),
    "train_classification_test_classification": (45, 10, 10),
    "train_halfhalf_test_classification": (45, 10, 10),
    "train_nonclassification_test_classification": (45, 10, 10),
    "train_non_nli_test_nli": (56, 8, 0),
    "train_nonparaphrase_classification_test_paraphrase": (61, 4, 0),
    "train_non_mrc_qa_test_mrc": (42, 9, 0),
    "train_non_multiple_choice_qa_test_multiple_choice": (29, 22, 0),
}


def test_counts():
    counts = Counter(task.metric for task in crossfit().values())
    assert sum(counts.values()) == 160
    assert counts == {
        "Classification-F1": 51,
        "ACC": 51,
        "EM": 28,
        "Rouge-L": 17,
        "QA-F1": 9,
        "Pearson-Correlation": 3,
        "Matthew-Correlation": 1,
    }
    assert set(counts) == set(METRICS) == set(METRIC_NAMES)


def test_table_equals_the_facts():
    rows = facts("crossfit_tasks.csv")
    assert {row["task"] for row in rows} == set(crossfit())
    for row in rows:
        task = crossfit()[row["task"]]
        assert (task.metric, task.category) == (row["metric"], row["category"]), task.name
        assert (task.kind, task.k) == (row["task_type"], int(row["k"])), task.name
        start = 1 if task.name == "art" else 0
        assert dict(enumerate(task.labels, start)) == labels_of(row), task.name
        source = task.source
        expected = row["hf_path"] if task.name != "proto_qa" else "proto_qa"
        assert (source.path, source.config or "") == (expected, row["hf_config"]), task.name
        assert source.train == row["train_split"], task.name
        assert (source.test or source.train) == row["test_split"], task.name
        assert row["holdout"] == in_words(source.holdout, source.test_share), task.name
        assert (task.references == "one") == (row["references"].split(":")[0] == "one"), task.name
        assert task.reproducible != ("Python set" in row["references"]), task.name
        assert (task.cleaning is not None) == ("whole input" in row["cleaning"]), task.name


def in_words(holdout, test_share):
    """Word a hold-out rule as the fact table does."""
    if test_share is not None:
        return f"test split shuffled with seed 42, first int({test_share}*n) rows kept"
    if holdout is None:
        return "none"
    parts = {
        Holdout(): "first int(0.8*n) rows pool, rest test",
        Holdout(10000, None, 11000): "rows 0 to 9999 pool, 10000 to 10999 test",
        Holdout(0.8, 0.99): "first int(0.8*n) rows pool, rows from int(0.99*n) on test",
    }[holdout]
    return f"pool and test cut from one split: shuffle with seed 42, {parts}"


@pytest.mark.parametrize("name", SIZES)
def test_partitions(name):
    sides = Partition.read(PARTITIONS / f"{name}.json")
    assert (len(sides.train), len(sides.dev), len(sides.test)) == SIZES[name]
    listed = [*sides.train, *sides.dev, *sides.test]
    assert set(listed) <= set(crossfit())
    assert len(set(listed)) == len(listed)
    if name == "random":
        assert len(listed) == 160


@pytest.mark.parametrize("name", SIZES)
def test_partitions_equal_the_facts(name):
    sides = json.loads((PARTITIONS / f"{name}.json").read_text())
    published = {side: set() for side in ("train", "dev", "test")}
    for row in facts("crossfit_partitions.csv"):
        if row["partition"] == name:
            published[row["side"]].add(row["task"])
    if name == "train_non_nli_test_nli":
        # It is published on both sides; a task that is tested on is not trained on here.
        published["train"].remove("sick")
    assert {side: set(tasks) for side, tasks in sides.items()} == published


def test_random_partition_equals_the_column_of_the_facts():
    sides = json.loads((PARTITIONS / "random.json").read_text())
    for row in facts("crossfit_tasks.csv"):
        assert row["task"] in sides[row["random_partition"]]


def test_tasks_that_the_hub_cannot_give_say_where_to_get_them():
    reasons = {n: t.source.unavailable for n, t in crossfit().items() if t.source.unavailable}
    assert set(reasons) == {"eli5-askh", "eli5-asks", "eli5-eli5", "proto_qa"}
    assert all("github.com/" in reason and "--raw" in reason for reason in reasons.values())


def test_unknown_tasks():
    assert metric_of("boolq") == "ACC"
    with pytest.raises(
        TaskError, match=r"task 'bool_q' is unknown.*Did you mean 'boolq'.*TASKS\.csv"
    ):
        metric_of("bool_q")
