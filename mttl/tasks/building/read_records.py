"""Records from files, in order: TSV, CSV or JSON Lines, each of them also packed with gzip."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

from mttl.errors import TaskError
from mttl.io.reading import JSON_RULES, MOST_LINE, reason, require_file, table_rows
from mttl.tasks.filters import shown
from mttl.tasks.task import FILE_ENDINGS

# Bytes that may be packed as tightly as zeros are; beyond, far less.
SMALL, TIGHTEST = 1 << 26, 100
_BLOCK = 1 << 17
DECODE = json.JSONDecoder(**JSON_RULES).decode


def read_records(path: Path, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Read a file record by record; memory does not grow with its length.

    Args:
        path: A file with one of `FILE_ENDINGS`, in UTF-8. TSV is read without quoting, CSV with.
        columns: Names of the columns of a TSV or CSV file without a header; with none, its first
            line names them.

    Yields:
        Records: texts by column, or what a line of JSON holds.

    Raises:
        TaskError: If the file cannot be read or is cut short, or a line is malformed (file, line
            and reason).
    """
    if not path.name.endswith(FILE_ENDINGS):
        raise TaskError(f"'{path}' must be a file of one of the kinds {', '.join(FILE_ENDINGS)}.")
    json_lines = ".jsonl" in path.suffixes[-2:]
    if json_lines and columns:
        raise TaskError(f"'{path}': JSON Lines name their fields; leave 'columns' out.")
    if json_lines:
        yield from _json_lines(path)
        return
    kind = {"delimiter": "\t" if ".tsv" in path.suffixes[-2:] else ",", "names": columns}
    for _, row in table_rows(_lines(path), str(path), TaskError, **kind):
        yield row


@contextmanager
def open_bounded(path: Path) -> Iterator[Any]:
    """Open a regular file, packed or not, whose lines and unpacked size have bounds.

    Raises:
        TaskError: If it cannot be opened, and while it is read, if a line is too long or it unpacks
            to far more than it is.
    """
    require_file(path, TaskError)
    try:
        file = path.open("rb")
    except OSError as error:
        raise TaskError(f"cannot read '{path}': {error.strerror or error}.") from error
    with file:
        yield _Unpacked(file, path) if path.suffix == ".gz" else file


class _Unpacked(io.RawIOBase):
    """A packed file that stops where it turns out to be a bomb."""

    def __init__(self, packed: IO[bytes], path: Path) -> None:
        self._packed, self._path = packed, path
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")
        self._n_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._file.read1(len(buffer))
        self._n_read += len(block)
        if self._n_read > SMALL and self._n_read > TIGHTEST * self._packed.tell():
            raise TaskError(
                f"'{self._path}' unpacks to more than {TIGHTEST} times its own size, which text "
                "does not. Is it the right file?"
            )
        buffer[: len(block)] = block
        return len(block)


def lines_of(file: Any, path: Path) -> Iterator[bytes]:
    """Give the lines of a file with their ends.

    Raises:
        TaskError: If one has more than `MOST_LINE` bytes.
    """
    for number in count(1):
        line = file.readline(MOST_LINE + 1)
        if not line:
            return
        if len(line) > MOST_LINE:
            raise TaskError(
                f"{path}, line {number}: more than {MOST_LINE:,} bytes, which is no record."
            )
        yield line


def _lines(path: Path) -> Iterator[str]:
    """Give the lines with their ends; only a line feed ends one."""
    number = 0
    try:
        with open_bounded(path) as file:
            reader = io.BufferedReader(file, _BLOCK)
            for number, line in enumerate(lines_of(reader, path), 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{path}, line {number}: byte {error.start + 1} (0x{error.object[error.start]:02x}) is "
            "not valid UTF-8; save the file as UTF-8."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TaskError(
            f"'{path}' is cut short or damaged after line {number} ({error}); fetch it again."
        ) from error
    except OSError as error:
        raise TaskError(f"cannot read '{path}': {error.strerror or error}.") from error


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = DECODE(line)
        except json.JSONDecodeError as error:
            raise TaskError(
                f"{path}, line {number}, column {error.colno}: not valid JSON: {error.msg}."
            ) from error
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{path}, line {number}: not valid JSON: {reason(error)}.") from error
        if not isinstance(record, dict):
            raise TaskError(
                f"{path}, line {number}: {shown(record)} is no record; each line must be an object "
                'such as {"text": "..."}.'
            )
        yield record
