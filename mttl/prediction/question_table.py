"""Questions in a table, and the same table with answers: TSV, CSV (both with a header) or JSONL.

| column | content |
|---|---|
| ``input`` | the question |
| ``task`` | its task, where there are several |
| ``output`` | the right answer; in JSONL it may be a list of them |
| ``choices`` | answers to choose from: a list in JSONL, joined by ``|`` elsewhere |

Other columns are kept. Answers stand in the column ``prediction``, and the probabilities of a
choice in ``probabilities``.
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from mttl.errors import TaskError
from mttl.reading import parse_json, parse_table, shown

FORMATS = ("tsv", "csv", "jsonl")
ANSWER, PROBABILITIES = "prediction", "probabilities"
Rows = list[dict[str, Any]]


def parse_rows_of(text: str, kind: str, place: str) -> Rows:
    """Return the rows of a table.

    Args:
        text: Its content.
        kind: ``tsv``, ``csv`` or ``jsonl``.
        place: Where it is from, for messages.

    Raises:
        TaskError: If a row is malformed; the message names its line.
    """
    if kind == "jsonl":
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        return [
            parse_json(line, f"{place}, line {number}", TaskError, dict)
            for number, line in enumerate(lines, 1)
        ]
    delimiter = "\t" if kind == "tsv" else ","
    advice = "Mend the table, or give the questions as JSONL"
    return list(parse_table(text, place, TaskError, delimiter=delimiter, advice=advice))


def guess_kind(text: str) -> str:
    """Return the format of questions that no name of a file tells: JSONL, or else TSV."""
    return "jsonl" if text.startswith("{") else "tsv"


def check_questions(rows: Rows, place: str) -> None:
    """See that every row is a question.

    Raises:
        TaskError: If there is none, or one has no text or a value of another type; the message
            names it.
    """
    if not rows:
        raise TaskError(f"{place}: there is no question. Give a row for each, below the header")
    kinds = {"input": (str,), "task": (str,), "output": (str, list), "choices": (str, list)}
    for number, row in enumerate(rows, 1):
        if "input" not in row:
            found = ", ".join(map(str, row)) or "nothing"
            raise TaskError(
                f"{place}, row {number}: there is no column 'input', only {shown(found)}. Tables "
                "need a header with it"
            )
        for name, allowed in kinds.items():
            value = row.get(name, "")
            texts = value if isinstance(value, list) else [value]
            if type(value) not in allowed or not all(isinstance(text, str) for text in texts):
                raise TaskError(f"{place}, row {number}: {name} is {shown(value)}; it must be text")
        if not row["input"].strip():
            raise TaskError(f"{place}, row {number}: the input is empty; leave the row out")


def references_of(row: dict[str, Any]) -> list[str]:
    """Return the right answers of a question; none where they are not known."""
    value = row.get("output", "")
    return [text for text in (value if isinstance(value, list) else [value]) if text]


def choices_of(row: dict[str, Any]) -> list[str]:
    """Return the answers that a question names to choose from."""
    value = row.get("choices", "")
    return list(value) if isinstance(value, list) else [x for x in value.split("|") if x]


def format_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], kind: str) -> str:
    """Return rows as text; the header of a table is `format_header`.

    Args:
        rows: The rows.
        columns: Of a table, in order.
        kind: As for `parse_rows_of`.
    """
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        writer.writerow(
            [c if isinstance(c, str) else json.dumps(c, ensure_ascii=False) for c in cells]
        )
    return text.getvalue()


def format_header(columns: Sequence[str], kind: str) -> str:
    """Return the header of a table; JSONL has none."""
    return (
        ""
        if kind == "jsonl"
        else format_rows([dict(zip(columns, columns, strict=True))], columns, kind)
    )
