"""The lines of a split, addressed by number, with bounded memory.

Samples hold a few hundred lines of sources that may have millions. Where a task writes each record
as one line, whatever the others are, and its records can be had in any order, only the lines that
are asked for are converted (`ConvertedWhenAsked`). Otherwise all are, once, into a file without a
name (`Stored`); memory holds 16 bytes a line.
"""

import tempfile
from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from mttl.data.record_files import RandomAccess, Record, Records
from mttl.errors import TaskError
from mttl.tasks.convert import convert
from mttl.tasks.sampling import Indices, LabelNumbers, Line
from mttl.tasks.task import Task

# A source of fewer records is converted whole: it costs little, and every record is checked.
CONVERT_ALL = 20_000
_BLOCK = 1000


class Lines(Protocol):
    """Lines of a split, as they stand in a file, and numbers of their labels."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> list[bytes]:
        """Return lines, with their ends, in UTF-8."""
        ...

    def labels(self, indices: Indices) -> Indices:
        """Return the numbers of their outputs; see `mttl.tasks.sampling.Labelled`."""
        ...


def make_lines(
    task: Task,
    split: str,
    records: Records,
    *,
    scratch: Path | None = None,
    convert_all: int = CONVERT_ALL,
) -> Lines:
    """Return the lines of a split.

    Args:
        task: How a record is written.
        split: Its name, for messages.
        records: All of them.
        scratch: Where lines may be stored; None: in the system's folder.
        convert_all: Sources of so many records are converted whole in any case.

    Raises:
        TaskError: If a record that is converted cannot be.
    """
    each_alone = task.rows is None and task.prepare is None
    if each_alone and isinstance(records, RandomAccess) and len(records) > convert_all:
        return ConvertedWhenAsked(task, split, records)
    return Stored(task, split, records, scratch)


class Stored:
    """All lines of a split, in a file without a name.

    Args:
        task: How a record is written.
        split: Its name, for messages.
        records: All of them.
        scratch: Where the file goes; None: in the system's folder.
    """

    def __init__(self, task: Task, split: str, records: Records, scratch: Path | None = None):
        self._file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        lengths, labels = array("q"), array("q")
        numbers = LabelNumbers(task)
        for block in _converted(task, split, records):
            data = [_as_in_file(line, task, split) for line in block]
            self._file.write(b"".join(data))
            lengths.extend(map(len, data))
            if task.kind == "classification":
                labels.extend(numbers[line[1:]] for line in block)
        self._ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self._labels = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def take(self, indices: Indices) -> list[bytes]:
        """Return lines, with their ends, in UTF-8."""
        found = []
        starts, ends = self._ends[indices].tolist(), self._ends[indices + 1].tolist()
        for start, end in zip(starts, ends, strict=True):
            self._file.seek(start)
            found.append(self._file.read(end - start))
        return found

    def labels(self, indices: Indices) -> Indices:
        """Return the numbers of their outputs."""
        return self._labels[indices]


class ConvertedWhenAsked:
    """Lines of a task that writes each record alone, converted when they are asked for.

    Args:
        task: How a record is written.
        split: Its name, for messages.
        records: All of them.
    """

    def __init__(self, task: Task, split: str, records: RandomAccess):
        self._task, self._split, self._records = task, split, records
        self._numbers = LabelNumbers(task)
        self._labels = np.full(len(records), -1, np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, indices: Indices) -> list[bytes]:
        """Return lines, with their ends, in UTF-8."""
        return [_as_in_file(line, self._task, self._split) for line in self._convert(indices)]

    def labels(self, indices: Indices) -> Indices:
        """Return the numbers of their outputs; they are remembered."""
        unknown = indices[self._labels[indices] < 0]
        numbers = (self._numbers[line[1:]] for line in self._convert(unknown))
        self._labels[unknown] = np.fromiter(numbers, np.int64, len(unknown))
        return self._labels[indices]

    def _convert(self, indices: Indices) -> Iterator[Line]:
        for start in range(0, len(indices), _BLOCK):
            block = indices[start : start + _BLOCK]
            taken: list[Record] = self._records.take(block)
            try:
                yield from convert(self._task, self._split, taken)
            except TaskError:
                # It counts the records of this block; in order, the same names row and file.
                for _ in _converted(self._task, self._split, self._records):
                    pass
                raise


def _converted(task: Task, split: str, records: Records) -> Iterator[list[Line]]:
    """Give the lines of all records, a block at a time; what goes wrong is told with the file."""
    lines = convert(task, split, records)
    while True:
        try:
            block = list(islice(lines, _BLOCK))
        except TaskError as error:
            known = records.name in str(error)
            raise error if known else TaskError(f"{records.name}: {error}") from error
        if not block:
            return
        yield block


def _as_in_file(line: Line, task: Task, split: str) -> bytes:
    text = "\t".join(line) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        shown = text[max(0, error.start - 20) : error.end + 20].encode(errors="replace").decode()
        raise TaskError(
            f"task '{task.name}', split '{split}': half a character (a lone surrogate, "
            f"{text[error.start]!r}) cannot be written as UTF-8, near '{shown.strip()}'."
        ) from error
