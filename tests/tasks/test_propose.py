"""`mttl init` on folders as people have them: each yields a task file, or one clear message."""

import csv
import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from helpers.raw import write_jsonl
from mttl.commands import init, train
from mttl.io import yaml12
from mttl.io.errors import TaskError
from mttl.runtime.command import run_command
from mttl.tasks.convert import convert
from mttl.tasks.propose import propose
from mttl.tasks.rows import read_records
from mttl.tasks.task_file import load_tasks

Pairs = list[tuple[str, str]]  # input and answer of each record


def pairs(text: Callable[[int], str], n: int = 40, n_labels: int = 2) -> Pairs:
    return [(text(i), f"label {i % n_labels}") for i in range(n)]


def write_csv(path: Path, rows: Pairs, header: tuple[str, ...] = ("text", "label"), **form: Any):
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = form.pop("encoding", "utf-8")
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, **form).writerows([header, *rows])


def table(name: str, text: Callable[[int], str], **form: Any) -> Callable[[Path], Pairs]:
    def make(at: Path) -> Pairs:
        rows = pairs(text)
        write_csv(at / "mood.csv", rows, **form)
        return rows

    make.__name__ = name
    return make


TABLES = [
    table("quotes", lambda i: f'she said "no, {i}", then left;\nand "so" on'),
    table("byte_order_mark", lambda i: f"größe {i}", encoding="utf-8-sig"),
    table("windows_lines", lambda i: f"first {i}\r\nsecond\tthird", lineterminator="\r\n"),
    table(
        "semicolons",
        lambda i: f"a, b; {i}",
        header=("text, or what was said", "label"),
        delimiter=";",
    ),
]


def right_to_left(at: Path) -> Pairs:
    rows = [(f"שלום {i} مرحبا \u200fx", ("خير", "שר")[i % 2]) for i in range(40)]
    write_csv(at / "mood.csv", rows, header=("نص", "תווית"))
    return rows


def emoji(at: Path) -> Pairs:
    rows = [(f"👩‍👩‍👧 {i} 🇩🇪 e\u0301", ("😀", "😢")[i % 2]) for i in range(40)]
    at.mkdir(parents=True)
    lines = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows])
    (at / "mood.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    return rows


def many_labels(at: Path) -> Pairs:
    rows = pairs(lambda i: f"message {i}", 77 * 8, 77)
    write_jsonl(
        at / "train.jsonl",
        [{"id": i, "utterance": a, "intent": b} for i, (a, b) in enumerate(rows)],
    )
    return rows


def empty_cells(at: Path) -> Pairs:
    rows = pairs(lambda i: f"text {i}", 60)
    rows = [("" if i % 9 == 0 else a, "  " if i % 11 == 0 else b) for i, (a, b) in enumerate(rows)]
    write_csv(at / "mood.csv", rows)
    return [(a, b) for a, b in rows if a.strip() and b.strip()]


def parquet(at: Path) -> Pairs:
    rows = pairs(lambda i: f"text {i}\n\tx")
    for split, part in {"train": rows, "test": rows[:3], "validation": rows[:4]}.items():
        at.mkdir(parents=True, exist_ok=True)
        columns = dict(zip(("sentence", "label"), map(list, zip(*part, strict=True)), strict=True))
        pq.write_table(pa.table(columns), at / f"{split}-00000-of-00001.parquet")
    return rows


def long_texts(at: Path) -> Pairs:
    rows = [(f"{i} " + "word " * 700, f"summary {i} " + "x" * 90) for i in range(30)]
    write_jsonl(at / "news/train.jsonl", [{"document": a, "summary": b} for a, b in rows])
    return rows


def nested(at: Path) -> Pairs:
    rows = pairs(lambda i: f"text {i}")
    records = [{"data": {"text": a, "n": 3}, "meta": {"label": b, "by": ["x"]}} for a, b in rows]
    write_jsonl(at / "mood.jsonl", records)
    return rows


def saved(at: Path) -> Pairs:
    rows = pairs(lambda i: f"text {i}")
    features = Features(
        {"text": Value("string"), "label": ClassLabel(names=["label 0", "label 1"])}
    )
    data = {"text": [a for a, _ in rows], "label": [int(b[-1]) for _, b in rows]}
    both = Dataset.from_dict(data, features)
    DatasetDict({"train": both, "test": both.select(range(3))}).save_to_disk(at / "mood")
    return rows


def broken_row(at: Path) -> str:
    write_csv(at / "mood.csv", [*pairs(str), ("x", "y", "z")])
    return r"mood\.csv, line 42: 3 cells; the header has 2 \(text, label\)\. Correct the line"


FOLDERS: list[Callable[[Path], Pairs | str]] = [
    *(*TABLES, right_to_left, emoji, many_labels, empty_cells),
    *(parquet, long_texts, nested, saved, broken_row),
]


def proposed(at: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Save what the command prints."""
    assert run_command(lambda: init.main([str(at)])) == 0
    file = at.parent / "tasks.yaml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_each_folder_is_read_without_a_change(make, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    expected = make(Path("data"))
    if isinstance(expected, str):
        with pytest.raises(TaskError, match=expected):
            propose("data")
        return
    (task,) = load_tasks(proposed(Path("data"), capsys)).values()
    records = read_records(task.source.train, (), task.source.delimiter)
    assert list(convert(task, "train", records)) == expected
    labels = tuple(sorted({answer for _, answer in expected}))
    labels = {77: ("from train",), 30: ()}.get(len(labels), labels)
    assert task.kind == ("classification" if labels else "text-to-text")
    assert (task.options, task.metric) == (labels, "accuracy" if labels else "exact")


@pytest.mark.slow
@pytest.mark.parametrize("make", FOLDERS[:-1], ids=lambda make: make.__name__)
def test_each_proposal_trains_as_printed(make, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("data"))
    file = proposed(Path("data"), capsys)
    short = ["trainer.max_steps=2", "data.max_eval_rows=2", "data.batch_size=2", "skills.rank=2"]
    words = ["--tasks", str(file), "-k", *short, "run.name=x"]
    assert run_command(lambda: train.main(words)) == 0
    scored = "0 tasks; generated: 1" if make is long_texts else "1 tasks; generated: 0"
    assert f"scored options: {scored}" in capsys.readouterr().out
    lengths = yaml12.read_yaml("runs/x/config.yaml", TaskError)["data"]
    assert (lengths["max_input_length"] > 1000) == (make is long_texts)
    assert lengths["max_input_length"] < 4096


def test_names_splits_and_notes(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pairs(lambda i: f"text {i}")
    for name in ("boolq/train.csv", "boolq/test.csv", "a b_valid.csv", "a b.csv"):
        write_csv(Path("data", name), rows)
    for split in ("train", "test"):
        records = [{"question": "a", "answers": {"text": ["b"], "start": [3]}}] * 9
        write_jsonl(Path("data", split, "c.jsonl"), records)
    write_jsonl(Path("data/d.jsonl"), [{"messages": [{"role": "user"}]}])
    write_jsonl(Path("data/e.jsonl"), [{"text": f"{i}", "label": i % 2 == 0} for i in range(20)])
    write_csv(Path("data/only_test.csv"), rows)
    columns = {"id": "a-1", "statement": "it has rained for days", "evidence": "the road was wet"}
    pair = [{**columns, "by": f"Ann Lee-{i}", "label": i % 2} for i in range(20)]
    write_jsonl(Path("data/pair.jsonl"), pair)
    Path("data/broken.jsonl").write_text('{"text": "a", "label": "b"}\n{"text": \n')
    write_jsonl(Path("data/two.jsonl"), [{"text": "a", "label": "b"}] * 2)
    text = propose("data")
    tree = yaml12.parse(text)["tasks"]
    assert sorted(tree) == ["a_b", "c", "e", "my-boolq", "pair"]
    assert tree["pair"]["input"] == "statement: {statement} evidence: {evidence}"
    broken = "broken: data/broken.jsonl, line 2, "
    assert f"  # {broken}" in text
    assert f"no task for {broken}" in caplog.text
    assert "train would take all of the lines (1) and leave none for dev; add lines" in text
    assert tree["a_b"]["k"] == "all"
    assert tree["c"]["references"] == "all"
    assert tree["my-boolq"]["source"] == {
        "train": "data/boolq/train.csv",
        "test": "data/boolq/test.csv",
    }
    assert tree["e"]["output"] == "{label|name}"
    assert tree["e"]["labels"] == tree["e"]["options"] == ["false", "true"]
    assert "# d: no columns for input and output among: messages" in text
    assert "# only: no training file, only data/only_test.csv" in text
    assert re.search(r"kind: classification  # 2 labels: 'label 0' 20, 'label 1' 20", text)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "'data' has no data: files must end in one of .tsv, .csv"),
        ({"x.parquet": b"PAR1"}, r"'data/x\.parquet' cannot be read \(.*\); copy it again"),
        ({"x.csv": b"a,label\nx,y\n"}, "k is 1, so train would take all|no line"),
        ({"x.csv": b"a,b\n", "x_train.csv": b"a,b\n"}, "are both train of 'x'; join or rename"),
        ({"x.jsonl": b'{"messages": []}\n'}, "no task can be proposed:\nx: no columns for input"),
    ],
)
def test_one_message_for_what_cannot_be_used(files, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, content in files.items():
        Path("data", name).write_bytes(content)
    with pytest.raises(TaskError, match=message):
        propose("data")
