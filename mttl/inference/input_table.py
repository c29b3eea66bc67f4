"""Questions in a table, and the same table with answers: TSV, CSV (both with a header) or JSONL.

| column | content |
|---|---|
| ``input`` | the question |
| ``task`` | its task, where there are several |
| ``output`` | the right answer; in JSONL it may be a list of them |
| ``choices`` | answers to choose from: a list in JSONL, joined by ``|`` elsewhere |

Cells are read as in building a gym: TSV without quoting, numbers of JSON as text. Other columns are
kept. Answers stand in the column ``prediction``, and the probabilities of a choice in
``probabilities``. A row whose input is empty has no answer; ``unanswered`` says why.
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.reading import parse_json, shown, table_rows
from mttl.tasks.filters import RecordError
from mttl.tasks.template import texts

FORMATS = ("tsv", "csv", "jsonl")
ANSWER, PROBABILITIES, UNANSWERED = "prediction", "probabilities", "unanswered"
_LISTS = ("output", "choices")
Rows = list[dict[str, Any]]


def parse_rows_of(text: str, kind: str, place: str) -> Rows:
    """Return the rows of a table.

    Raises:
        TaskError: If a row is malformed; the message names its line.
    """
    if kind == "jsonl":
        return [
            parse_json(line, f"{place}, line {number}", TaskError, dict)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    delimiter = "\t" if kind == "tsv" else ","
    advice = "Correct the table (quotes are for CSV), or give the questions as JSONL"
    rows = table_rows(text, place, TaskError, delimiter=delimiter, advice=advice)
    return [row for _, row in rows]


def guess_kind(text: str) -> str:
    """Return the format of questions without a file name: JSONL or TSV."""
    return "jsonl" if text.startswith("{") else "tsv"


def check_questions(rows: Rows, place: str) -> None:
    """See that rows are questions; some may have no input.

    Raises:
        TaskError: If there is none, or one has a value of another type; the message names it.
    """
    if rows and not any("input" in row for row in rows):
        found = ", ".join(map(str, rows[0])) or "nothing"
        raise TaskError(
            f"{place}, row 1: there is no column 'input', only {shown(found)}. Tables need a "
            "header with it"
        )
    for number, row in enumerate(rows, 1):
        for name in ("input", "task", "output", "choices"):
            try:
                _texts(row, name)
            except RecordError as error:
                raise TaskError(
                    f"{place}, row {number}: {name} is {shown(row[name])}; it must be text or a "
                    "number"
                ) from error
    if not any(text_of(row, "input") for row in rows):
        raise TaskError(f"{place}: there is no question. Give a row for each, below the header")


def _texts(row: dict[str, Any], column: str) -> list[str]:
    """Return the texts of a cell, without blanks around them; none of null."""
    value = row.get(column)
    values = value if isinstance(value, list) and column in _LISTS else [value]
    return list(map(str.strip, texts([each for each in values if each is not None])))


def text_of(row: dict[str, Any], column: str) -> str:
    """Return the text of a cell; empty where there is none."""
    return "".join(_texts(row, column))


def references_of(row: dict[str, Any]) -> list[str]:
    """Return the right answers of a question; none where they are not known."""
    return list(filter(None, _texts(row, "output")))


def choices_of(row: dict[str, Any]) -> list[str]:
    """Return the answers that a question names to choose from."""
    given = _texts(row, "choices")
    if isinstance(row.get("choices"), list):
        return given
    return [choice for choice in "".join(given).split("|") if choice.strip()]


def format_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], kind: str) -> str:
    """Return rows as text; the header of a table is `format_header`.

    Only tables need ``columns``. An answer that TSV cannot hold, or that begins with a quotation
    mark, becomes a JSON string there.
    """
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    cells = [[_cell(row.get(column, ""), column, kind) for column in columns] for row in rows]
    if kind == "tsv":
        return "".join("\t".join(line) + "\n" for line in cells)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue()


def _cell(value: Any, column: str, kind: str) -> str:
    if value is None:
        return ""
    quoted = kind == "tsv" and column == ANSWER and (value[:1] == '"' or set(value) & set("\t\r\n"))
    return value if isinstance(value, str) and not quoted else json.dumps(value, ensure_ascii=False)


def format_header(columns: Sequence[str], kind: str) -> str:
    """Return the header of a table; JSONL has none."""
    header = {column: column for column in columns}
    return "" if kind == "jsonl" else format_rows([header], columns, kind)
