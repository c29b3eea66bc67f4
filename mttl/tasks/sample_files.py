"""Write the few-shot files of a task from its records, with bounded memory.

The lines of a split are stored in a temporary file; memory has 16 bytes per line.
"""

import hashlib
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from mttl.io.errors import TaskError
from mttl.io.files import atomic_path, write_table
from mttl.io.reading import read_table
from mttl.tasks.bins import add_codes
from mttl.tasks.conll import read_sentences
from mttl.tasks.convert import convert
from mttl.tasks.dialogue_files import DIALOGUES
from mttl.tasks.folder import SPLITS, options_cell
from mttl.tasks.head_form import HeadKind
from mttl.tasks.nli_files import read_nli
from mttl.tasks.record_template import RecordTemplate
from mttl.tasks.rows import TSV, line_of, read_records
from mttl.tasks.sampling import SAMPLES, Indices, cut, few_shot
from mttl.tasks.task import Source, Task
from mttl.tasks.template import Record

_COLUMNS = ("task", "metric", "category", "description")


def file_names(task: Task, samples: Iterable[int]) -> list[str]:
    """Return the names of a task's files; all rows are one sample."""
    samples = samples if task.k is not None else SAMPLES[:1]
    k = "all" if task.k is None else task.k
    return [f"{task.name}_{k}_{s}_{split}{task.ending}" for s in samples for split in SPLITS]


def fingerprint(task: Task, files: Iterable[Path]) -> str:
    """Return a hash of a task's definition and of its source files' sizes and times."""
    stats = [(str(path), path.stat()) for path in files]
    states = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    task = replace(task, category="", description="", side="train")  # not in the files
    return hashlib.sha256(repr((task, states)).encode()).hexdigest()[:16]


def file_records(source: Source, split: str) -> Iterator[Record]:
    """Return the records of a split that is a file."""
    readers = {**DIALOGUES, "xnli": read_nli}
    if source.format in readers:
        return readers[source.format](split)
    if source.format:
        return read_sentences(split, source.format, source.columns)
    return read_records(split, source.columns, source.delimiter)


def write_samples(
    task: Task,
    folder: Path,
    samples: Sequence[int],
    open_records: Callable[[Source, str], Iterable[Record]] = file_records,
) -> dict[str, str]:
    """Write the files of a task into its existing folder; return their MD5 sums by name.

    ``open_records`` returns the records of a split; by default splits are files. Raises a
    `TaskError` if a record cannot be read or converted, or a file would be empty.
    """

    def lines_of(split: str) -> Lines:
        return Lines(task, split, open_records(task.source, split), scratch=folder)

    train = lines_of(task.source.train)
    test = train if task.source.test is None else lines_of(task.source.test)
    dev = None if task.source.dev is None else lines_of(task.source.dev)
    if dev is not None and not len(dev):
        raise TaskError(f"task '{task.name}': dev ('{task.source.dev}') has no lines.")
    pool, held_out = cut(task, len(train), None if test is train else len(test))
    sums: dict[str, str] = {}
    trained: list[str] = []
    for sample in samples if task.k is not None else SAMPLES[:1]:
        train_name, dev_name, test_name = file_names(task, [sample])
        train_indices, dev_indices = few_shot(task, train.labels, pool, sample)
        sums[train_name] = train.write(folder / train_name, train_indices)
        trained.append(train_name)
        if dev is not None:
            dev_indices, _ = few_shot(task, dev.labels, np.arange(len(dev)), sample)
        sums[dev_name] = (dev or train).write(folder / dev_name, dev_indices)
        sums[test_name] = test.write(folder / test_name, held_out)
    return sums | add_codes(task.control, folder, trained) if task.control else sums


class Lines:
    """The lines of a split, stored in a temporary file."""

    def __init__(
        self, task: Task, split: str, records: Iterable[Record], scratch: Path | None = None
    ):
        self._file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 -- closed with this object
        lengths, labels = array("q"), array("q")
        numbers: dict[tuple[str, ...], int] = {}
        for line in convert(task, split, records):
            text = line_of(task.ending, line[0], line[1:], line.columns)
            lengths.append(self._file.write(text.encode()))
            if task.kind == "classification":
                outputs = line[1:]
                if task.ending != TSV:  # texts are stripped when read
                    outputs = tuple(map(str.strip, outputs))
                labels.append(numbers.setdefault(outputs, len(numbers)))
        self._ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        # One number per line of a classification task, equal for equal outputs.
        self.labels = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def write(self, path: Path, indices: Indices) -> str:
        """Write the lines with the given indices, in order; return the MD5 sum of the file."""
        digest = hashlib.md5(usedforsecurity=False)
        starts, ends = self._ends[indices].tolist(), self._ends[indices + 1].tolist()
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            for start, end in zip(starts, ends, strict=True):
                self._file.seek(start)
                line = self._file.read(end - start)
                digest.update(line)
                file.write(line)
        return digest.hexdigest()


def update_task_table(gym: Path, tasks: Iterable[Task]) -> None:
    """Add tasks to TASKS.csv of a gym, keeping other rows and columns."""
    path = gym / "TASKS.csv"
    found = read_table(path, TaskError, ["task"]) if path.exists() else []
    rows = {row["task"]: row for row in found}
    for task in tasks:
        new = {column: getattr(task, column) for column in _COLUMNS[1:]} | {"task": task.name}
        if task.kind in get_args(HeadKind):
            new["kind"] = task.kind
        if task.options:
            new["options"] = options_cell(task.options)
        if task.prepare is None and task.ending != TSV:
            new["template"] = RecordTemplate.of(task).model_dump_json(exclude_defaults=True)
        rows[task.name] = rows.get(task.name, {}) | new
    columns = list(dict.fromkeys([*_COLUMNS, *(name for row in rows.values() for name in row)]))
    write_table(path, columns, (dict.fromkeys(columns, "") | r for _, r in sorted(rows.items())))
