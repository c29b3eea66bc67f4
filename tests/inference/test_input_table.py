"""Tables of questions are read and written in three formats."""

import json
import re
from pathlib import Path

import pytest

from mttl.inference.input_table import (
    FORMATS,
    check_questions,
    choices_of,
    format_header,
    format_rows,
    parse_rows_of,
    read_rows,
    references_of,
    text_of,
)
from mttl.io.errors import TaskError
from mttl.tasks.rows import DELIMITERS, read_records


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_is_read_as_it_was_written(kind: str) -> None:
    rows = [
        {"task": "a", "input": '"quoted", ' + ("" if kind == "tsv" else "tab\there\nsecond line")},
        {"task": "b", "input": "naïve 日本"},
    ]
    text = format_header(["task", "input"], kind) + format_rows(rows, ["task", "input"], kind)
    assert parse_rows_of(text + " \n\n", kind, "x") == rows


@pytest.mark.parametrize("mark", DELIMITERS)
def test_csv_is_read_with_each_separator_of_training_files(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'text{mark}label\n"a{mark} b, c"{mark}good\n', encoding="utf-8")
    rows = parse_rows_of(path.read_text("utf-8"), "csv", "x")
    assert rows == list(read_records(path)) == [{"text": f"a{mark} b, c", "label": "good"}]
    assert parse_rows_of("input\na;b\n", "csv", "x") == [{"input": "a;b"}]


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("x", '{"input": "a"}\n', "jsonl"),
        ("x", "input\na\n", "tsv"),
        ("x.csv", "input\na\n", "csv"),
    ],
)
def test_the_format_is_that_of_the_name_or_the_start(tmp_path, name, text, kind) -> None:
    (tmp_path / name).write_text(text)
    assert read_rows(str(tmp_path / name)) == ([{"input": "a"}], kind)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("answer", ['"a" b', "a\tb\nc\r", "a\\nb", "", '""', None])
def test_answers_of_any_characters_are_read_as_they_were_written(kind: str, answer: object) -> None:
    text = format_rows([{"input": '"x', "prediction": answer}], ["input", "prediction"], kind)
    (row,) = parse_rows_of(format_header(["input", "prediction"], kind) + text, kind, "x")
    assert row["input"] == '"x'
    expected = "" if answer is None and kind != "jsonl" else answer
    found = row["prediction"]
    quoted = kind == "tsv" and found.startswith('"')
    assert (json.loads(found) if quoted else found) == expected


def test_references_and_choices() -> None:
    assert references_of({"input": "x"}) == references_of({"output": ""}) == []
    assert references_of({"output": "a"}) == ["a"]
    assert references_of({"output": ["a", "b"]}) == ["a", "b"]
    assert choices_of({"choices": "a|b"}) == choices_of({"choices": ["a", "b"]}) == ["a", "b"]
    # As in building a gym: numbers are texts, and blanks around a text are none of it.
    row = {"input": 7, "task": 123, "output": [1, " 2.5 "], "choices": [1, 2]}
    check_questions([row, {"input": None, "output": None, "choices": None}, {}], "x")
    assert (text_of(row, "input"), text_of(row, "task")) == ("7", "123")
    assert (references_of(row), choices_of(row)) == (["1", "2.5"], ["1", "2"])
    assert references_of({"output": 3}) == ["3"]
    assert references_of({"output": None}) == references_of({"output": " "}) == []


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("input\ttask\na\n", "tsv", "x, line 2: 1 cells; the header has 2"),
        ('input\n"a\n', "csv", "x, line 2: unexpected end of data"),
        ('{"input": 1}\n\n{\n', "jsonl", "x, line 3, column 2"),
        ('{"input": NaN}\n', "jsonl", "x, line 1: not valid JSON: NaN is "),
        ("text\na\n", "tsv", "x, row 1: the column 'input' is missing; columns are \"text\""),
        ('{"input": ["a"]}\n', "jsonl", 'x, row 1: input is ["a"]; it must be text or a number'),
        ("input,n\n,1\n ,2\n", "csv", "x: no row has an input"),
    ],
)
def test_malformed_tables(text: str, kind: str, message: str) -> None:
    with pytest.raises(TaskError, match=re.escape(message)):
        check_questions(parse_rows_of(text, kind, "x"), "x")
