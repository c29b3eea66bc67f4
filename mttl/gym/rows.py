r"""One file of a gym, in UTF-8: a row is a line.

| ending | a line is |
|---|---|
| ``.tsv`` | ``input<TAB>output[<TAB>another accepted output ...]``, as CrossFit's files are |
| ``.jsonl`` | ``{"input": "...", "outputs": ["...", "another accepted output"]}`` |

A TSV file has no quoting and no header, so its texts hold no tab and no line break; those of JSON
Lines may hold both. A reader of damaged data should never train on it by accident, so every
malformed line is an error that names the file, the line and the reason.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mttl.errors import TaskError
from mttl.reading import MOST_LINE, parse_json, read_bytes, shown

TSV, JSON_LINES = ".tsv", ".jsonl"
ENDINGS = (TSV, JSON_LINES)
_FORM = {
    TSV: "input<TAB>output",
    JSON_LINES: '{"input": "...", "outputs": ["..."]}',
}


@dataclass(frozen=True)
class Row:
    """One example: what goes in, and every output that counts as right (the first is trained)."""

    input: str
    outputs: tuple[str, ...]


def read_rows(path: Path, max_rows: int | None = None) -> list[Row]:
    """Read one file; see `parse_rows`.

    Raises:
        TaskError: If the file cannot be read, is empty, or holds a malformed line.
    """
    return parse_rows(read_bytes(path, TaskError), path, max_rows)


def parse_rows(data: bytes, path: Path, max_rows: int | None = None) -> list[Row]:
    r"""Parse the bytes of one file.

    Lines end with ``\n``; ``\r\n`` and a byte order mark are accepted, and a lone ``\r`` inside a
    line of TSV becomes a blank. White space around a text is dropped, in both formats: predictions
    are stripped before they are scored, so a reference that kept its own could never be met.

    Args:
        data: The content of the file.
        path: Where it came from; its ending tells the format.
        max_rows: Read only so many rows, spread evenly.

    Raises:
        TaskError: If there is no row, or a line that is read is malformed.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows ({max_rows}) must be at least 1, or None for all rows.")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        form = _FORM[path.suffix]
        raise TaskError(f"'{path}' is empty; it must hold at least one line '{form}'.")
    if b"\r" in data and b"\n" not in data:
        raise TaskError(
            f"'{path}' ends its lines with carriage returns alone; save it with '\\n' line ends."
        )
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    n_rows = len(lines) if max_rows is None else min(max_rows, len(lines))
    # CrossFit's files are sorted by label: the first rows would be of one label.
    numbers = [place * len(lines) // n_rows for place in range(n_rows)]
    parse = _parse_json_line if path.suffix == JSON_LINES else _parse_tsv_line
    places = {n: f"{path}, line {n + 1}" for n in numbers}
    return [parse(_text_of(lines[n], place), place) for n, place in places.items()]


def line_of(ending: str, source: str, outputs: Sequence[str]) -> str:
    """Return a row as a line of a file, with its end.

    Args:
        ending: One of `ENDINGS`. The texts of a line of TSV must hold neither tab nor line break.
        source: The input.
        outputs: Every accepted output.
    """
    if ending == TSV:
        return "\t".join((source, *outputs)) + "\n"
    return json.dumps({"input": source, "outputs": list(outputs)}, ensure_ascii=False) + "\n"


def _text_of(line: bytes, place: str) -> str:
    if len(line) > MOST_LINE:
        raise TaskError(f"{place}: {len(line):,} bytes; a line has at most {MOST_LINE:,}.")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not valid UTF-8; "
            "save the file as UTF-8."
        ) from error


def _parse_tsv_line(text: str, place: str) -> Row:
    if "\t" not in text:
        raise TaskError(f"{place}: no tab between input and output, got '{text.strip()[:40]}'.")
    source, *outputs = text.replace("\r", " ").split("\t")
    return _row(source, outputs, place)


def _parse_json_line(text: str, place: str) -> Row:
    row = parse_json(text, place, TaskError)
    keys = isinstance(row, dict) and row.keys() == {"input", "outputs"}
    if not keys or not isinstance(row["outputs"], list) or not row["outputs"]:
        raise TaskError(f"{place}: {shown(row)} is no row; it must read {_FORM[JSON_LINES]}.")
    source, outputs = row["input"], row["outputs"]
    for value in (source, *outputs):
        if not isinstance(value, str):
            raise TaskError(f"{place}: {shown(value)} is no text; put it in quotes.")
    return _row(source, outputs, place)


def _row(source: str, outputs: Sequence[str], place: str) -> Row:
    source, outputs = source.strip(), [output.strip() for output in outputs]
    if not source:
        raise TaskError(f"{place}: the input is empty.")
    for n, output in enumerate(outputs, 1):
        if not output:
            which = "the output" if len(outputs) == 1 else f"output {n} of {len(outputs)}"
            raise TaskError(f"{place}: {which} is empty.")
    return Row(source, tuple(outputs))
