"""Read text, JSON and tables; errors name the file.

In all functions, `error` is the class of `MttlError` that is raised for a missing file or invalid
content, and `place` describes the origin of a text.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from mttl.io.errors import MttlError, raised_as

# Maximum bytes of a line of a table or of JSON Lines; the csv module's default is much lower.
MOST_LINE = 1 << 24
csv.field_size_limit(MOST_LINE)
_KINDS = {dict: "an object", list: "a list"}


def require_file(path: str | Path, error: type[MttlError]) -> int:
    """Return the size of a file; raises an error for a missing file or a folder."""
    if not Path(path).exists():
        raise error(f"'{path}' does not exist; check the name, or copy the file there")
    if Path(path).is_dir():
        raise error(f"'{path}' is a folder; name a file")
    return Path(path).stat().st_size


def read_bytes(path: str | Path, error: type[MttlError]) -> bytes:
    """Return the content of a file."""
    require_file(path, error)
    with raised_as(error, f"'{path}' cannot be read", OSError, text=reason):
        return Path(path).read_bytes()


def file_sha256(path: Path, error: type[MttlError]) -> str:
    """Return the SHA-256 of a file of any size."""
    require_file(path, error)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | Path, error: type[MttlError]) -> str:
    """Return the UTF-8 text of a file, without a byte order mark."""
    return decoded(read_bytes(path, error), f"'{path}'", error)


def decoded(data: bytes, place: str, error: type[MttlError], *, encoding: str = "utf-8-sig") -> str:
    """Return UTF-8 bytes as text, by default without a byte order mark."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as cause:
        raise error(
            f"{place} must be UTF-8 text; byte {cause.start + 1} (0x{data[cause.start]:02x}) is "
            "not; save the file as UTF-8"
        ) from cause


def read_json(path: str | Path, error: type[MttlError], kind: type | None = None) -> Any:
    """Return the content of a JSON file; see `parse_json`."""
    return parse_json(read_text(path, error), str(path), error, kind)


def parse_json(
    text: str | bytes, place: str, error: type[MttlError], kind: type | None = None
) -> Any:
    """Return the value of JSON text of type ``kind``; repeated keys and NaN are errors."""
    try:
        value = json.loads(text, **JSON_RULES)
    except (ValueError, RecursionError) as cause:
        what = reason(cause)
        if isinstance(cause, json.JSONDecodeError):
            line = "" if ", line " in place else f", line {cause.lineno}"
            place = f"{place}{line}, column {cause.colno}"
            what = f"{cause.msg}. Correct the line, or copy the file again"
        raise error(f"{place}: not valid JSON: {what}") from cause
    if kind is not None and not isinstance(value, kind):
        raise error(f"{place}: contains {shown(value)}; it must contain {_KINDS[kind]}")
    return value


def read_table(
    path: str | Path, error: type[MttlError], columns: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header, by column; see `table_rows`."""
    return [row for _, row in table_rows(read_text(path, error), str(path), error, columns)]


def table_rows(
    lines: str | Iterable[str],
    place: str,
    error: type[MttlError],
    columns: Sequence[str] = (),
    *,
    names: Sequence[str] = (),
    delimiter: str = ",",
    quoted: bool | None = None,
    advice: str = "Copy the file again",
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the last line number of each row, and its cells by column; blank lines are skipped.

    A text may be given as lines with their ends. ``columns`` are required; ``names`` are the
    columns of a table without a header. By default all but tab-separated cells may be ``quoted``.
    """
    quoted = delimiter != "\t" if quoted is None else quoted
    if isinstance(lines, str):
        lines = io.StringIO(lines, newline="" if quoted else "\n")
    if quoted:
        cells = _csv_cells(lines, delimiter, place, error, advice)
    else:
        cells = _tsv_cells(lines, delimiter)
    header = list(names) or next(cells, (0, []))[1]
    absent = [column for column in columns if column not in header]
    if absent or not header or len(set(header)) < len(header):
        needs = f"have the columns {', '.join(columns)}, each once"
        raise error(
            f"'{place}' must {needs if columns else 'have distinct columns'}; its header is "
            f"{shown(','.join(header))}. {advice}"
        )
    for number, row in cells:
        if len(row) != len(header):
            raise error(
                f"{place}, line {number}: {len(row)} cells; the header has {len(header)} "
                f"({', '.join(header)}). {advice}"
            )
        yield number, dict(zip(header, row, strict=True))


def _tsv_cells(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        if line.strip(" \r\n"):
            yield number, line.rstrip("\r\n").split(delimiter)


def _csv_cells(
    lines: Iterable[str], delimiter: str, place: str, error: type[MttlError], advice: str
) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells and not (len(cells) == 1 and cells[0].isspace()):
                yield reader.line_num, cells
    except csv.Error as cause:
        raise error(f"{place}, line {reader.line_num}: {cause}. {advice}") from cause


def to_number(text: str, place: str, error: type[MttlError]) -> float:
    """Return the number in a cell of a table, which may be NaN but not infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise error(f"{place} is {shown(text)}; it must be a number. Copy the file again")
    return value


def exact_fraction(share: float, n: int) -> Fraction:
    """Return the exact product of a decimal fraction, as written by the user, and an integer."""
    return Fraction(str(share)) * n


def printable(name: Any) -> str:
    """Return a name for tables and files; raises a `ValueError` for unprintable ones."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ValueError("must be a name of printable characters")
    return name


def shown(value: object, most: int = 60) -> str:
    """Return a value for a message, shortened, in ASCII."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = ascii(value) if isinstance(value, (str, bytes, int, float)) else type(value).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def reason(error: BaseException) -> str:
    """Return the message of an error in one line of limited length."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # The json module would silently keep only the last of equal keys.
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} is repeated")
    return found


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {shown(text)} is too large")
    return value


# Arguments for `json.loads`.
JSON_RULES: dict[str, Any] = {
    "object_pairs_hook": _without_repeats,
    "parse_constant": _refuse_constant,
    "parse_float": _finite,
}
