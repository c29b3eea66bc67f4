import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from helpers.backbones import tiny_t5
from helpers.skills import skilled
from helpers.trainer import quiet_trainer
from mttl.data.collate import EvalCollator
from mttl.training.predictions import Result, predict, score, write_predictions, write_results
from mttl.training.text_to_text import Prediction
from training.test_text_to_text import module, rows

METRICS = {"words": "EM", "more words": "ACC", "numbers": "Pearson-Correlation"}


def answers(task_id: int, sample: int, *pairs: str) -> list[Prediction]:
    """Return rows from pairs ``reference/answer``."""
    apart = [pair.split("/") for pair in pairs]
    return [
        Prediction(task_id, sample, i, f"input {i}", (reference,), answer)
        for i, (reference, answer) in enumerate(apart)
    ]


def test_a_row_per_task_and_sample_in_their_order_and_the_mean_over_tasks() -> None:
    given = [
        *answers(1, 100, "x/X", "y/the y", "z/z"),
        *answers(0, 100, "x/z", "y/the y"),
        *answers(0, 13, "x/x"),
    ]
    *results, _ = score(given, METRICS, "dev", 7)
    assert results == [
        # EM overlooks an article, ACC does not.
        Result("words", "dev", "13", 7, "EM", 1.0, 1),
        Result("words", "dev", "100", 7, "EM", 0.5, 2),
        Result("more words", "dev", "100", 7, "ACC", pytest.approx(2 / 3), 3),
    ]
    # Every task has the same weight in the mean, however many samples it has.
    samples = answers(0, 13, "x/y"), answers(0, 42, "x/y"), answers(0, 100, "x/x")
    mean = score([*chain(*samples), *answers(1, 100, "x/x")], METRICS, "test", 7)[-1]
    # The mean of 1/3 and 1; over task and sample it would be 1/2.
    assert mean == Result("mean", "test", "all", 7, "mean", pytest.approx(2 / 3), 4)


def test_results_file(tmp_path: Path) -> None:
    write_results(
        tmp_path / "new" / "results.csv",
        [
            Result("a, b", "dev", "100", 13, "EM", 2 / 3, 3),
            Result("c", "dev", "100", 13, "Pearson-Correlation", math.nan, 5),
        ],
    )
    assert (tmp_path / "new" / "results.csv").read_text() == (
        "task,split,sample,seed,metric,score,n\n"
        '"a, b",dev,100,13,EM,0.666667,3\n'
        "c,dev,100,13,Pearson-Correlation,nan,5\n"
    )


def test_predictions_are_a_file_per_task_with_one_line_per_row(tmp_path: Path) -> None:
    given = [
        Prediction(0, 13, 0, "in", ("a", "ä"), "two\nlines"),
        Prediction(2, 100, 2, "x", ("y",), ""),
        Prediction(0, 100, 1, "ink", ("o",), "日本\u2028語"),
    ]
    write_predictions(tmp_path, given, list(METRICS), "test")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["numbers_test.jsonl", "words_test.jsonl"]
    text = (tmp_path / "words_test.jsonl").read_text(encoding="utf-8")
    assert "日本" in text  # as it is, not escaped
    lines = text.removesuffix("\n").split("\n")
    assert [json.loads(line) for line in lines] == [
        {"sample": 13, "input": "in", "references": ["a", "ä"], "prediction": "two\nlines"},
        {"sample": 100, "input": "ink", "references": ["o"], "prediction": "日本\u2028語"},
    ]


def test_answers_come_in_the_order_of_tasks_and_rows_and_only_once() -> None:
    trained, trainer = module(skilled(tiny_t5())), quiet_trainer()
    # As the data module does: batches by length, not by task.
    batches = [[4, 0], [3], [2, 1]]
    collate: Any = EvalCollator(0, False)
    loader: Any = DataLoader(rows(), batch_sampler=batches, collate_fn=collate)
    for _ in range(2):  # the second time, the answers of the first are gone
        found = predict(trainer, trained, loader)
        assert [(row.task_id, row.row) for row in found] == [(0, 0), (0, 2), (2, 1), (2, 3), (2, 4)]
        assert [row.input for row in found] == [f"input {row.row}" for row in found]
