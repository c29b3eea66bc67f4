"""The 160 tasks: the table, its templates and sums against the facts of CrossFit."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from helpers.fact_templates import SHARED, facts, filled, labels_of, records_for
from mttl.metrics.metric_names import METRIC_NAMES
from mttl.tasks.convert import convert
from mttl.tasks.partition import Partition
from mttl.tasks.task import Holdout, published_sums
from mttl.tasks.task_file import crossfit

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
    assert counts == {
        "Classification-F1": 51,
        "ACC": 51,
        "EM": 28,
        "Rouge-L": 17,
        "QA-F1": 9,
        "Pearson-Correlation": 3,
        "Matthew-Correlation": 1,
    }
    of_trees = {"UAS", "LAS"}
    assert set(counts) == {name for name in METRIC_NAMES if name[0].isupper()} - of_trees


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
        assert (task.references == "distinct") == ("Python set" in row["references"]), task.name
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
    sides = Partition.read(PARTITIONS / f"{name}.json").model_dump()
    assert tuple(map(len, sides.values())) == SIZES[name]
    assert {task for tasks in sides.values() for task in tasks} <= set(crossfit())
    published = {side: set() for side in ("train", "dev", "test")}
    for row in facts("crossfit_partitions.csv"):
        if row["partition"] == name:
            published[row["side"]].add(row["task"])
    if name == "train_non_nli_test_nli":
        # It is published on both sides; a task that is tested on is not trained on here.
        published["train"].remove("sick")
    assert {side: set(tasks) for side, tasks in sides.items()} == published


def test_tasks_that_the_hub_cannot_give_say_where_to_get_them():
    reasons = {n: t.source.unavailable for n, t in crossfit().items() if t.source.unavailable}
    assert set(reasons) == {"eli5-askh", "eli5-asks", "eli5-eli5", "proto_qa"}
    assert all("github.com/" in reason and "--raw" in reason for reason in reasons.values())


def test_every_file_has_a_sum():
    sums = published_sums()
    assert set(sums) == set(crossfit())
    assert sum(map(len, sums.values())) == 2400
    assert all(len(md5) == 32 for by_file in sums.values() for md5 in by_file.values())
    names = sums["glue-rte"]
    assert names["glue-rte_16_13_test.tsv"] == names["glue-rte_16_87_test.tsv"]
    assert names["glue-rte_16_13_dev.tsv"] != names["glue-rte_16_87_dev.tsv"]


def test_they_are_the_published_ones():
    path = SHARED / "crossfit_md5.csv"
    if not path.is_file():
        pytest.skip(f"the fact table crossfit_md5.csv is not at {SHARED}; set MTTL_SHARED")
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = "{task}_{k}_{sample}_{split}.tsv".format(**row)
            assert published_sums()[row["task"]][name] == row["md5"]


# What the fact table words instead of giving a template; test_functions.py has them by hand.
WORDED = {name for name, task in crossfit().items() if task.prepare is not None} - {"duorc"}
WORDED |= {"limit", "proto_qa"}
# Rows that are not kept would give no line.
KEPT = {
    "circa": {"goldstandard2": 3},
    "duorc": {"no_answer": False},
    "health_fact": {"label": 2},
    "hate_speech18": {"label": 1},
}


@pytest.mark.parametrize("name", sorted(set(crossfit()) - WORDED))
def test_lines_are_those_of_the_facts(name):
    row = next(row for row in facts("crossfit_tasks.csv") if row["task"] == name)
    records = [{**record, **KEPT.get(name, {})} for record in records_for(row)]
    if name == "tweet_eval-emotion":  # its published files left these characters in place
        records = [{**r, "text": r["text"].replace("\\n", " ")} for r in records]
    lines = ["\t".join(line) for line in convert(crossfit()[name], "train", records)]
    assert lines == [filled(row, record) for record in records]
    assert len(set(lines)) == 2


def test_worded_tasks_are_those_that_the_facts_word():
    worded = {
        row["task"]
        for row in facts("crossfit_tasks.csv")
        if "custom:" in row["input_format"] + row["output_format"]
    }
    assert worded == WORDED
