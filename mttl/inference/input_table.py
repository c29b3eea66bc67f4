"""Tables of inputs and answers: TSV, CSV (both with a header) or JSONL.

`docs/howto/predict.md` lists the columns. Cells are read as in task files: TSV without quoting,
JSON numbers as text. A row with an empty input has no answer; ``unanswered`` has the reason.
"""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.reading import decoded, parse_json, read_bytes, shown, table_rows
from mttl.tasks.filters import RecordError
from mttl.tasks.rows import delimiter_of
from mttl.tasks.template import as_text, template_fields

FORMATS = ("tsv", "csv", "jsonl")
ANSWER, PROBABILITIES, UNANSWERED = "prediction", "probabilities", "unanswered"
_LISTS = ("output", "choices")
Rows = list[dict[str, Any]]


def parse_rows_of(text: str, kind: str, place: str) -> Rows:
    """Return the rows of a table; the `TaskError` for a malformed row has its line."""
    if kind == "jsonl":
        return [
            parse_json(line, f"{place}, line {number}", TaskError, dict)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    delimiter = "\t" if kind == "tsv" else delimiter_of(text.partition("\n")[0])
    advice = "Correct the table (quotes work only in CSV), or use JSONL"
    form = {"delimiter": delimiter, "quoted": kind == "csv", "advice": advice}
    return [row for _, row in table_rows(text, place, TaskError, **form)]


def read_rows(path: str | None, kind: str | None = None) -> tuple[Rows, str]:
    """Return the rows of a file or of standard input, and their format.

    Without ``kind``, the format is that of the file's ending; without one it is JSONL if the text
    begins with a brace, and otherwise TSV.
    """
    place = path or "standard input"
    content = sys.stdin.buffer.read() if path is None else read_bytes(path, TaskError)
    text, ending = decoded(content, place, TaskError), Path(place).suffix[1:]
    guessed = "jsonl" if text.startswith("{") else "tsv"
    kind = kind or (ending if ending in FORMATS else guessed)
    return parse_rows_of(text, kind, place), kind


def check_questions(rows: Rows, place: str, template: str = "{input}") -> None:
    """Check the rows of an input table; some may have no input.

    Raises a `TaskError` if no row has an input, or a value has a wrong type; ``template`` is one
    of the run that the rows lack columns for.
    """
    if rows and not any("input" in row for row in rows):
        found = ", ".join(map(str, rows[0])) or "nothing"
        needed = min(template_fields(template) - rows[0].keys(), default="input")
        raise TaskError(
            f"{place}, row 1: the column '{needed}' is missing; columns are {shown(found)}. Add a "
            "header with it, or name the columns with --input TEMPLATE"
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
        raise TaskError(f"{place}: no row has an input. Add rows below the header")


def check_references(rows: Rows, place: str, advice: str) -> None:
    """Raise a `TaskError` if no row has a reference answer."""
    if not any(map(references_of, rows)):
        raise TaskError(f"{place}: no row has the right answer; {advice}")


def _texts(row: dict[str, Any], column: str) -> list[str]:
    """Return the texts of a cell, stripped; empty for null."""
    value = row.get(column)
    values = value if isinstance(value, list) and column in _LISTS else [value]
    return [as_text(each).strip() for each in values if each is not None]


def text_of(row: dict[str, Any], column: str) -> str:
    """Return the text of a cell; empty if it is missing."""
    return "".join(_texts(row, column))


def references_of(row: dict[str, Any]) -> list[str]:
    """Return the reference answers of a row; empty if unknown."""
    return list(filter(None, _texts(row, "output")))


def answer_of(row: dict[str, Any], kind: str, place: str) -> str:
    """Return the answer of a row that `format_rows` wrote; ``place`` is for messages."""
    text = text_of(row, ANSWER)
    if kind == "tsv" and text[:1] == '"':
        return str(parse_json(text, f"{place}: {ANSWER}", TaskError))
    return text


def choices_of(row: dict[str, Any]) -> list[str]:
    """Return the choices of a row."""
    given = _texts(row, "choices")
    if isinstance(row.get("choices"), list):
        return given
    return [choice for choice in "".join(given).split("|") if choice.strip()]


def format_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], kind: str) -> str:
    """Return rows as text without the header; see `format_header`.

    ``columns`` is used for TSV and CSV. In TSV, an answer with tabs or line breaks, or a leading
    quotation mark, is written as a JSON string.
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
    """Return the header of a table; empty for JSONL."""
    header = {column: column for column in columns}
    return "" if kind == "jsonl" else format_rows([header], columns, kind)
