"""One task of a gym, from its source to files that are verified.

Files are written whole or not at all, the ones of a task first and then ``.built.json``, which has
their MD5 sums and says what they were made from. So a second start knows what is complete, and what
was damaged or is of another definition since.
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from mttl.io.errors import MttlError, TaskError
from mttl.io.files import atomic_path
from mttl.io.record import Record
from mttl.tasks.building.hub import UnavailableError
from mttl.tasks.building.record_files import counted
from mttl.tasks.building.sources import local_files, open_records
from mttl.tasks.building.split_lines import Lines, make_lines
from mttl.tasks.md5_sums import published_sums
from mttl.tasks.sampling import SAMPLES, Indices, cut, few_shot
from mttl.tasks.task import Task

RECORD = ".built.json"
SPLITS = ("train", "dev", "test")
_BLOCK = 5000

Status = Literal["verified", "built", "differs", "incomplete", "unavailable", "failed"]
OnRows = Callable[[int], object]


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        task: Its name.
        status: ``verified``: all files have their published sums; ``built``: complete, and nothing
            is published to compare with; ``differs``: complete, with other sums; ``incomplete``:
            files are missing; ``unavailable``: its records cannot be had; ``failed``: a record is
            malformed.
        detail: Why, where that needs words.
        skipped: Whether it was there already.
    """

    task: str
    status: Status
    detail: str = ""
    skipped: bool = False


class _Built(Record):
    """The content of ``.built.json``: what the files were made from, and their MD5 sums."""

    made_from: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


def build_task(
    task: Task,
    out: Path,
    *,
    samples: Sequence[int] = SAMPLES,
    raw: Path | None = None,
    on_rows: OnRows = lambda n: None,
) -> Outcome:
    """Build the files of a task, unless they are complete.

    Raises:
        OSError: If a file cannot be written.
    """
    made_from = _fingerprint(task, raw)
    found = check_task(task, out, samples=samples, made_from=made_from)
    if found.status != "incomplete":
        return Outcome(task.name, found.status, found.detail, skipped=True)
    folder = out / task.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        sums = _write(task, folder, samples, raw, on_rows)
    except UnavailableError as error:
        return Outcome(task.name, "unavailable", str(error))
    except TaskError as error:
        return Outcome(task.name, "failed", str(error))
    except OSError as error:
        error.filename = error.filename or str(folder)  # a failed write does not name its file
        raise
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    record = _read_record(folder)
    before = record.files if record.made_from == made_from else {}
    again = tuple(f"_{s}_{split}{task.ending}" for s in samples for split in SPLITS)
    for name in record.files:  # a sample has the files of one k
        if name.endswith(again) and name not in sums:
            (folder / name).unlink(missing_ok=True)
    _Built(made_from=made_from, files=before | sums).write(folder / RECORD)
    return _compared(task, sums)


def check_task(
    task: Task, out: Path, *, samples: Sequence[int] = SAMPLES, made_from: str | None = None
) -> Outcome:
    """Compare the files of a task with the published sums, and with those of when it was built."""
    folder = out / task.name
    names = file_names(task, samples)
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        return Outcome(task.name, "incomplete", f"{len(absent)} of {len(names)} files are missing")
    sums = {name: _md5(folder / name) for name in names}
    outcome = _compared(task, sums)
    if outcome.status == "verified":
        return outcome
    record = _read_record(folder)
    damaged = [name for name, md5 in sums.items() if record.files.get(name) != md5]
    if record.files and damaged:
        return Outcome(task.name, "incomplete", f"{damaged[0]} is not as it was built")
    if made_from is not None and record.made_from != made_from:
        return Outcome(task.name, "incomplete", "the files were made from something else")
    return outcome


def count_files(task: Task, out: Path, samples: Sequence[int] = SAMPLES) -> tuple[int, int]:
    """Return how many files of a task there are, and how many there should be."""
    names = file_names(task, samples)
    return sum((out / task.name / name).is_file() for name in names), len(names)


def file_names(task: Task, samples: Sequence[int]) -> list[str]:
    """Return the names of a task's files."""
    k = "all" if task.k is None else task.k
    stems = [f"{task.name}_{k}_{s}_{split}" for s in samples for split in SPLITS]
    return [stem + task.ending for stem in stems]


def _write(
    task: Task, folder: Path, samples: Sequence[int], raw: Path | None, on_rows: OnRows
) -> dict[str, str]:
    """Write the files of a task and return their sums."""

    def lines_of(split: str) -> Lines:
        records = open_records(task.source, split, raw=raw, scratch=folder)
        return make_lines(task, split, counted(records, on_rows), scratch=folder)

    train = lines_of(task.source.train)
    test = train if task.source.test is None else lines_of(task.source.test)
    dev = None if task.source.dev is None else lines_of(task.source.dev)
    if dev is not None and not len(dev):
        raise TaskError(f"task '{task.name}': the lines of dev ('{task.source.dev}') are none.")
    pool, held_out = cut(task, len(train), None if test is train else len(test))
    sums: dict[str, str] = {}
    first_test: Path | None = None
    for sample in samples:
        train_name, dev_name, test_name = file_names(task, [sample])
        train_indices, dev_indices = few_shot(task, train, pool, sample)
        sums[train_name] = _write_lines(folder / train_name, train, train_indices)
        if dev is not None:
            dev_indices, _ = few_shot(task, dev, np.arange(len(dev), dtype=np.int64), sample)
        sums[dev_name] = _write_lines(folder / dev_name, dev or train, dev_indices)
        if first_test is None:
            first_test = folder / test_name
            sums[test_name] = _write_lines(first_test, test, held_out)
        else:
            with atomic_path(folder / test_name) as temporary:
                shutil.copyfile(first_test, temporary)
            sums[test_name] = sums[first_test.name]
    return sums


def _write_lines(path: Path, lines: Lines, indices: Indices) -> str:
    """Write lines in the order of their indices; return the MD5 sum of the file."""
    digest = hashlib.md5(usedforsecurity=False)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for start in range(0, len(indices), _BLOCK):
            block = b"".join(lines.take(indices[start : start + _BLOCK]))
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _compared(task: Task, sums: Mapping[str, str]) -> Outcome:
    published = published_sums().get(task.name, {})
    known = [name for name in sums if name in published]
    if not known:
        return Outcome(task.name, "built")
    other = [name for name in known if sums[name] != published[name]]
    if not other:
        return Outcome(task.name, "verified")
    detail = f"{len(other)} of {len(known)} files are not as published"
    if not task.reproducible:
        detail += "; the published order of several right answers is not known"
    return Outcome(task.name, "differs", detail)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _read_record(folder: Path) -> _Built:
    """Return what the files were made from, and their sums; empty where that is not known."""
    with suppress(MttlError):
        return _Built.read(folder / RECORD)
    return _Built()


def _fingerprint(task: Task, raw: Path | None) -> str:
    """Return a short text that is another one whenever the definition or the source is."""
    files = [
        (str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in local_files(task.source, raw)
    ]
    task = replace(task, category="", description="")  # they are in no file
    text = repr((task, None if raw is None else str(raw.resolve()), files))
    text += task.source.dev or ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
