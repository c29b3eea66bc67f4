"""What routers are shown of tasks: the first training rows of each."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from datasets import Dataset

from mttl.io.errors import TaskError
from mttl.training.task_embeddings import N_EXAMPLES, _examples


def shown(tasks: list[str], rows: list[dict[str, Any]]) -> list[list[int]]:
    data = SimpleNamespace(tasks=tasks, train_rows=Dataset.from_list(rows))
    return _examples(cast(Any, data))


def test_the_first_rows_of_each_task_are_read_and_no_others(monkeypatch) -> None:
    n_rows = 4 * N_EXAMPLES
    rows = [
        {"task_id": 2 if n == 7 else n % 2, "input_ids": [n, n + 1], "labels": [1000 + n]}
        for n in range(n_rows)
    ]

    def walk(self: Dataset) -> None:
        raise AssertionError("every row is read")

    monkeypatch.setattr(Dataset, "__iter__", walk)
    expected = []
    for task in range(3):
        own = [row for row in rows if row["task_id"] == task][:N_EXAMPLES]
        expected.append([token for row in own for token in (*row["input_ids"], *row["labels"])])
    assert shown(["even", "odd", "rare"], rows) == expected
    with pytest.raises(TaskError, match="the router needs training examples of each task, but"):
        shown(["even", "odd", "rare", "empty"], rows)
