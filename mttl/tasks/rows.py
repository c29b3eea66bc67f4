r"""One file of a gym, in UTF-8: a row is a line.

| ending | a line is |
|---|---|
| ``.tsv`` | ``input<TAB>output[<TAB>another accepted output ...]``, as CrossFit's files are |
| ``.jsonl`` | ``{"input": "...", "outputs": ["...", "another accepted output"]}`` |

A TSV file has no quoting and no header, so its texts hold no tab and no line break; those of JSON
Lines may hold both. A reader of damaged data should never train on it by accident, so every
malformed line is an error that names the file, the line and the reason.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from mttl.io.errors import TaskError
from mttl.io.reading import parse_json, read_bytes, require_file, shown

TSV, JSON_LINES = ".tsv", ".jsonl"
ENDINGS = (TSV, JSON_LINES)
_MARK = b"\xef\xbb\xbf"  # of byte order
_PIECE = 1 << 20
_BLANK = b" \r\n"
_FORM = {
    TSV: "input<TAB>output",
    JSON_LINES: '{"input": "...", "outputs": ["..."]}',
}


@dataclass(frozen=True)
class Row:
    """One example: what goes in, and every output that counts as right (the first is trained)."""

    input: str
    outputs: tuple[str, ...]


class _Lines(NamedTuple):
    """What was found out about a file without keeping it."""

    count: int
    digest: str


@dataclass(frozen=True)
class RowFile:
    """A file whose rows are read one by one, so that its size does not matter."""

    path: Path
    n_lines: int
    digest: str

    @classmethod
    def scan(cls, path: Path) -> Self:
        """Look at a file without keeping it; its lines are checked when they are read.

        Raises:
            TaskError: If it cannot be read or is empty.
        """
        with _opened(path) as file:
            return cls(path, *_scan(file, path))

    def rows(self, max_rows: int | None = None) -> Iterator[Row]:
        """Read the rows one after another; see `parse_rows`.

        Raises:
            TaskError: If the file is not what it was when it was looked at, or a line is malformed.
        """
        with _opened(self.path) as file:
            if _scan(file, self.path) != (self.n_lines, self.digest):
                raise TaskError(f"'{self.path}' was changed while it was read; start again.")
            yield from _rows(file, self.path, self.n_lines, max_rows)


def read_rows(path: Path, max_rows: int | None = None) -> list[Row]:
    """Read one file; see `parse_rows`.

    Raises:
        TaskError: If the file cannot be read, is empty, or holds a malformed line.
    """
    return parse_rows(read_bytes(path, TaskError), path, max_rows)


def parse_rows(data: bytes, path: Path, max_rows: int | None = None) -> list[Row]:
    r"""Parse the bytes of one file.

    Lines end with ``\n``; ``\r\n`` and a byte order mark are accepted, and a lone ``\r`` inside a
    line of TSV becomes a blank. Blank lines are skipped. White space around a text is dropped, in
    both formats: predictions are stripped before they are scored, so a reference that kept its own
    could never be met.

    Raises:
        TaskError: If there is no row, or a line that is read is malformed.
    """
    file = io.BytesIO(data)
    return list(_rows(file, path, _scan(file, path).count, max_rows))


def _opened(path: Path) -> BinaryIO:
    if path.exists():
        require_file(path, TaskError)
    try:
        return path.open("rb")
    except OSError as error:
        raise TaskError(f"cannot read '{path}': {error.strerror or error}.") from error


def _scan(file: BinaryIO, path: Path) -> _Lines:
    """Count the lines of a file and sum it up, piece by piece."""
    digest = hashlib.sha256()
    count, returns, ends, mark = 0, False, False, _MARK
    while piece := file.read(_PIECE) + file.readline():
        digest.update(piece)
        lines = piece.removeprefix(mark).split(b"\n")
        count += sum(1 for line in lines if line.strip(_BLANK))
        returns, ends, mark = returns or b"\r" in piece, ends or len(lines) > 1, b""
    if not count:
        form = _FORM[path.suffix]
        raise TaskError(f"'{path}' is empty; it must hold at least one line '{form}'.")
    if returns and not ends:
        raise TaskError(
            f"'{path}' ends its lines with carriage returns alone; save it with '\\n' line ends."
        )
    return _Lines(count, digest.hexdigest())


def _rows(file: BinaryIO, path: Path, n_lines: int, max_rows: int | None) -> Iterator[Row]:
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows ({max_rows}) must be at least 1, or None for all rows.")
    parse = _parse_json_line if path.suffix == JSON_LINES else _parse_tsv_line
    n_rows = n_lines if max_rows is None else min(max_rows, n_lines)
    # CrossFit's files are sorted by label: the first rows would be of one label.
    wanted = (place * n_lines // n_rows for place in range(n_rows))
    number = next(wanted)
    file.seek(0)
    n = 0
    for line_number, line in enumerate(file, 1):
        line = line.removeprefix(_MARK if line_number == 1 else b"").removesuffix(b"\n")
        if line.strip(_BLANK):
            if n == number:
                place = f"{path}, line {line_number}"
                yield parse(_text_of(line, place), place)
                number = next(wanted, -1)
            n += 1


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
        raise TaskError(f"{place}: {shown(row)} is not a row; it must read {_FORM[JSON_LINES]}.")
    source, outputs = row["input"], row["outputs"]
    for value in (source, *outputs):
        if not isinstance(value, str):
            raise TaskError(f"{place}: {shown(value)} is not a text; put it in quotes.")
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
