"""Tables of questions are read and written in three formats."""

import re

import pytest

from mttl.errors import TaskError
from mttl.prediction.question_table import (
    FORMATS,
    check_questions,
    choices_of,
    format_header,
    format_rows,
    guess_kind,
    parse_rows_of,
    references_of,
)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_is_read_as_it_was_written(kind: str) -> None:
    rows = [
        {"task": "a", "input": 'tab\there, "quoted"\nand a second line'},
        {"task": "b", "input": "naïve 日本"},
    ]
    text = format_header(["task", "input"], kind) + format_rows(rows, ["task", "input"], kind)
    assert parse_rows_of(text, kind, "x") == rows
    assert parse_rows_of("", kind, "x") == []


def test_the_format_of_a_pipe_is_read_off_its_start() -> None:
    assert guess_kind('{"input": "a"}\n') == "jsonl"
    assert guess_kind("input\toutput\n") == guess_kind("") == "tsv"


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(TaskError, match="x: there is no question"):
        check_questions([], "x")


def test_lists_are_one_cell_of_a_table() -> None:
    row = {"input": "x", "probabilities": {"a": 0.5, "b": 0.5}}
    assert format_rows([row], list(row), "tsv") == 'x\t"{""a"": 0.5, ""b"": 0.5}"\n'


def test_references_and_choices() -> None:
    assert references_of({"input": "x"}) == references_of({"output": ""}) == []
    assert references_of({"output": "a"}) == ["a"]
    assert references_of({"output": ["a", "b"]}) == ["a", "b"]
    assert choices_of({"choices": "a|b"}) == choices_of({"choices": ["a", "b"]}) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("input\ttask\na\n", "tsv", "x, line 2: 1 cells; the header has 2"),
        ("input,input\na,b\n", "csv", "must have no column twice"),
        ('input\n"a\n', "csv", "x, line 2: unexpected end of data"),
        ('{"input": 1}\n{\n', "jsonl", "x, line 2, line 1"),
        ("[]\n", "jsonl", "it must hold an object"),
        ("text\na\n", "tsv", "x, row 1: there is no column 'input', only \"text\""),
        ('{"input": 1}\n', "jsonl", "x, row 1: input is 1; it must be text"),
        ('{"input": "a", "output": [1]}\n', "jsonl", "x, row 1: output is [1]; it must be text"),
        ("input,n\na,1\n ,2\n", "csv", "x, row 2: the input is empty"),
    ],
)
def test_malformed_tables(text: str, kind: str, message: str) -> None:
    with pytest.raises(TaskError, match=re.escape(message)):
        check_questions(parse_rows_of(text, kind, "x"), "x")
