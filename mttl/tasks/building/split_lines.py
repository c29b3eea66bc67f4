"""The lines of a split, addressed by number, with bounded memory.

Samples hold a few hundred lines of sources that may have millions. Where a record becomes the same
line, or none, whatever the others are, and records can be had in any order, only the lines that are
asked for are converted (`ConvertedWhenAsked`). Otherwise all are, once, into a file without a name
(`Stored`). Memory holds 16 to 24 bytes a line.
"""

import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from mttl.io.errors import TaskError
from mttl.tasks.building.record_files import RandomAccess, Records
from mttl.tasks.convert import convert, each_alone, survey
from mttl.tasks.rows import line_of
from mttl.tasks.sampling import Indices, LabelNumbers, Line, labels_are_named
from mttl.tasks.task import Task
from mttl.tasks.template_field import Record

# A source of fewer records is converted whole: it costs little, and every record is checked.
CONVERT_ALL = 20_000
_BLOCK = 250


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
    """Return the lines of a split."""
    if isinstance(records, RandomAccess) and each_alone(task) and len(records) > convert_all:
        return ConvertedWhenAsked(task, split, records)
    return Stored(task, split, records, scratch)


class Stored:
    """All lines of a split, in a file without a name."""

    def __init__(self, task: Task, split: str, records: Records, scratch: Path | None = None):
        self._file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        lengths, labels = array("q"), array("q")
        numbers = LabelNumbers(task)
        for block in _converted(task, split, records):
            data = _as_in_file(block, task)
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

    Where records may be left out, or any text may be a label, all records are read once to see.
    """

    def __init__(self, task: Task, split: str, records: RandomAccess):
        self._task, self._split, self._records = task, split, records
        self._numbers = LabelNumbers(task)
        self._places = np.arange(len(records), dtype=np.int64)
        self._labels = np.full(len(records), -1, np.int64)
        every_row = task.rows is None and task.prepare is None
        if not every_row or (task.kind == "classification" and not labels_are_named(task)):
            self._look_through()

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, indices: Indices) -> list[bytes]:
        """Return lines, with their ends, in UTF-8."""
        return _as_in_file(list(self._convert(indices)), self._task)

    def labels(self, indices: Indices) -> Indices:
        """Return the numbers of their outputs; they are remembered."""
        unknown = indices[self._labels[indices] < 0]
        numbers = (self._numbers[line[1:]] for line in self._convert(unknown))
        self._labels[unknown] = np.fromiter(numbers, np.int64, len(unknown))
        return self._labels[indices]

    def _look_through(self) -> None:
        places, labels = array("q"), array("q")
        with _named_errors(self._records.name):
            for number, answers in survey(self._task, self._split, self._records):
                places.append(number - 1)
                labels.append(self._numbers[answers])
        self._places, self._labels = np.array(places, np.int64), np.array(labels, np.int64)

    def _convert(self, indices: Indices) -> Iterator[Line]:
        for start in range(0, len(indices), _BLOCK):
            block = self._places[indices[start : start + _BLOCK]]
            taken: list[Record] = self._records.take(block)
            try:
                yield from convert(self._task, self._split, taken)
            except TaskError:
                # It counts the records of this block; in order, the same names row and file.
                for _ in _converted(self._task, self._split, self._records):
                    pass
                raise


def _converted(task: Task, split: str, records: Records) -> Iterator[list[Line]]:
    """Yield the lines of all records, a block at a time; errors name the file."""
    lines = convert(task, split, records)
    while True:
        with _named_errors(records.name):
            block = list(islice(lines, _BLOCK))
        if not block:
            return
        yield block


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Prepend the name of the records to errors."""
    try:
        yield
    except TaskError as error:
        raise error if name in str(error) else TaskError(f"{name}: {error}") from error


def _as_in_file(lines: list[Line], task: Task) -> list[bytes]:
    return [line_of(task.ending, line[0], line[1:]).encode() for line in lines]
