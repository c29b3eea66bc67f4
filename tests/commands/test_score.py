"""Scores of finished tables, against the scores that answering prints and counts by hand."""

import csv
import json
from pathlib import Path

import pytest
from torchmetrics import Metric

from mttl.commands import score
from mttl.inference.input_table import format_header, format_rows

COLUMNS = ["task", "input", "output", "knowledge", "prediction", "unanswered"]
ROWS = [
    ("a", "x", "it is", "it is", "it is", ""),
    ("a", "x", "no", "it is", '"is\tno', ""),
    ("a", "", "no", "it is", "", "the input is empty"),
    ("b", "x", "1", "a b", "2", ""),
    ("b", "x", "", "a b", "2", ""),
]
# "is no" is split into two words, one of which is in the knowledge.
EXPECTED = {("a", "exact"): (0.5, 2), ("a", "coverage"): (0.75, 2)}
EXPECTED |= {("b", "exact"): (0.0, 1), ("b", "coverage"): (0.0, 1)}


class Length(Metric):
    """A custom metric: a tenth of the mean length."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("lengths", [])

    def update(self, predictions: list, references: list) -> None:
        self.lengths += map(len, predictions)

    def compute(self) -> float:
        return sum(self.lengths) / len(self.lengths) / 10


def test_some_metrics_read_no_references(tmp_path: Path) -> None:
    path, out = tmp_path / "answers.jsonl", tmp_path / "scores.jsonl"
    path.write_text('{"knowledge": "it is", "prediction": "it was"}\n')
    assert score.main([str(path), "--metric", "coverage", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["metric"], found["score"], found["n"]) == ("coverage", 0.5, 1)


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_a_table_is_scored_by_task_and_metric(kind: str, tmp_path: Path, capsys) -> None:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    path, out = tmp_path / f"answers.{kind}", tmp_path / "scores.jsonl"
    path.write_text(format_header(COLUMNS, kind) + format_rows(rows, COLUMNS, kind))
    given = [str(path), "--metric", "exact", "coverage"]
    assert score.main([*given, "--out", str(out)]) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(r["task"], r["metric"]): (r["score"], r["n"]) for r in found} == EXPECTED
    cells = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["a", "50.0", "75.0", "2"] in cells


def test_columns_of_another_name_and_custom_metrics(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(Path(__file__).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    path, out = tmp_path / "talk.jsonl", tmp_path / "scores.csv"
    path.write_text('{"input": "x", "response": "it is", "prediction": "it is"}\n')
    given = [str(path), "--trust", "mine", "--metric", "mine:Length", "exact"]
    assert score.main([*given, "--references", "{response}", "--out", str(out)]) == 0
    with out.open() as file:
        found = [(row["task"], row["metric"], float(row["score"])) for row in csv.DictReader(file)]
    assert found == [("talk", "mine:Length", 0.5), ("talk", "exact", 1.0)]


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({"output": "x"}, [], "row 1: the column 'prediction' is missing; columns are"),
        ({"prediction": "x"}, [], "no row has the right answer; name its columns"),
        ({"prediction": "x"}, ["--references", "{y}"], "by --references TEMPLATE, now {y}"),
        ({"prediction": "x"}, ["--metric", "exact", "density"], "no row has the right answer"),
        ({"prediction": ["x"], "output": "y"}, [], "row 1: is"),
    ],
)
def test_mistakes_of_tables_are_named(row, more, message, tmp_path, refused) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert message in refused(score.main, path, "--metric", "exact", *more)
