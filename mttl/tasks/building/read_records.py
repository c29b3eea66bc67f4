"""Records from files, in order: TSV, CSV or JSON Lines, each of them also packed with gzip."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from mttl.io.errors import TaskError
from mttl.io.reading import JSON_RULES, parse_json, require_file, table_rows
from mttl.tasks.task import FILE_ENDINGS

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


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a regular file, packed or not, to read what it holds."""
    require_file(path, TaskError)
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path) -> Iterator[str]:
    """Give the lines with their ends; only a line feed ends one."""
    number = 0
    try:
        with open_unpacked(path) as file:
            for number, line in enumerate(file, 1):
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
        yield parse_json(line, f"{path}, line {number}", TaskError, dict)
