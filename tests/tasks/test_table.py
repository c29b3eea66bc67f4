import csv
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from mttl.errors import TaskError
from mttl.tasks.metrics import METRICS
from mttl.tasks.table import crossfit, metric_of

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("MTTL_SHARED", ROOT.parent / "shared"))


def read(name):
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"the fact table {name} is not at {SHARED}; set MTTL_SHARED")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def partition():
    return json.loads((ROOT / "configs/partitions/random.json").read_text())


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
    assert set(counts) == set(METRICS)


def test_random_partition():
    sides = partition()
    assert {side: len(tasks) for side, tasks in sides.items()} == {
        "train": 120,
        "dev": 20,
        "test": 20,
    }
    listed = [task for tasks in sides.values() for task in tasks]
    assert set(listed) == set(crossfit())
    assert len(set(listed)) == 160


def test_table_equals_the_facts():
    for row in read("crossfit_tasks.csv"):
        task = crossfit()[row["task"]]
        assert (task.metric, task.category) == (row["metric"], row["category"])
        assert row["task"] in partition()[row["random_partition"]]


def test_unknown_task():
    assert metric_of("boolq") == "ACC"
    with pytest.raises(
        TaskError, match=r"task 'bool_q' is unknown.*Did you mean 'boolq'.*TASKS\.csv"
    ):
        metric_of("bool_q")
