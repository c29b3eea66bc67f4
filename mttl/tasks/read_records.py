"""Records from files, in order: TSV, CSV or JSON Lines, each of them also packed with gzip."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.reading import parse_json, reason, require_file, table_rows
from mttl.tasks.rows import decoded
from mttl.tasks.task import FILE_ENDINGS, Source


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
    if ".jsonl" not in path.suffixes[-2:]:
        delimiter = "\t" if ".tsv" in path.suffixes[-2:] else ","
        table = {"delimiter": delimiter, "names": columns}
        yield from (row for _, row in table_rows(_lines(path), str(path), TaskError, **table))
        return
    if columns:
        raise TaskError(f"'{path}': JSON Lines name their fields; leave 'columns' out.")
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield parse_json(line, f"{path}, line {number}", TaskError, dict)


def from_files(source: Source, split: str) -> Iterator[dict[str, Any]]:
    """Return the records of a source whose splits are files; see `read_records`."""
    return read_records(Path(split), source.columns)


def _lines(path: Path) -> Iterator[str]:
    """Give the lines with their ends; only a line feed ends one."""
    require_file(path, TaskError)
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield decoded(line, f"{path}, line {number}", first=number == 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TaskError(
            f"'{path}' is cut short or damaged after line {number} ({error}); fetch it again."
        ) from error
    except OSError as error:
        raise TaskError(f"cannot read '{path}': {reason(error)}.") from error
