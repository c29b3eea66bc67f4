"""Build and verify the files of tasks.

Files are written atomically, and after them ``.built.json`` with their MD5 sums and the fingerprint
of their definition. Later builds thereby recognise complete, damaged and outdated files.

With several workers each task has its own process. If a process dies, for example for lack of
memory, or raises an error, only its task fails. If the disk is full or read-only, the build stops.
"""

import hashlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mttl.io.errors import MttlError, TaskError
from mttl.io.files import DISK_REFUSES
from mttl.io.record import Record
from mttl.tasks.building.collection import CollectedTask
from mttl.tasks.building.hub import UnavailableError, local_files, open_records
from mttl.tasks.sample_files import file_names, fingerprint, write_samples
from mttl.tasks.sampling import SAMPLES
from mttl.tasks.task import Task, published_sums

RECORD = ".built.json"
_SECONDS_TO_LEAVE = 5

Status = Literal["verified", "built", "differs", "incomplete", "unavailable", "failed"]


@dataclass(frozen=True)
class Outcome:
    """Status of a task after a build or a check, with details.

    ``verified``: all files have their published sums; ``built``: complete, without published sums;
    ``differs``: complete, with other sums; ``incomplete``: files are missing; ``unavailable``: its
    records cannot be obtained; ``failed``: a record is malformed. ``skipped``: it was complete
    before.
    """

    task: str
    status: Status
    detail: str = ""
    skipped: bool = False


class _Built(Record):
    """Content of ``.built.json``: fingerprint of the definition, and MD5 sums."""

    made_from: str | None = None
    files: dict[str, str] = Field(default_factory=dict)


def build_task(
    task: Task, out: Path, *, samples: Sequence[int] = SAMPLES, raw: Path | None = None
) -> Outcome:
    """Build the files of a task, unless they are complete.

    Raises an `OSError` if a file cannot be written.
    """
    opened, files = partial(open_records, raw=raw), local_files(task.source, raw)
    if isinstance(task, CollectedTask):
        opened, files = (lambda _, split: task.read(split)), task.files
    made_from = fingerprint(task, files)
    found = check_task(task, out, samples=samples, made_from=made_from)
    if found.status != "incomplete":
        return Outcome(task.name, found.status, found.detail, skipped=True)
    folder = out / task.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        sums = write_samples(task, folder, samples, opened)
    except TaskError as error:
        status = "unavailable" if isinstance(error, UnavailableError) else "failed"
        return Outcome(task.name, status, str(error))
    except OSError as error:
        error.filename = error.filename or str(folder)  # a failed write has no file name
        raise
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    record = _read_record(folder)
    before = record.files if record.made_from == made_from else {}
    for name in record.files.keys() - before.keys() - sums.keys():  # files of another definition
        (folder / name).unlink(missing_ok=True)
    _Built(made_from=made_from, files=before | sums).write(folder / RECORD)
    return _compared(task, sums)


def check_task(
    task: Task, out: Path, *, samples: Sequence[int] = SAMPLES, made_from: str | None = None
) -> Outcome:
    """Return the status of a task's files, compared with published and recorded sums."""
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
        return Outcome(task.name, "incomplete", f"{damaged[0]} has changed since it was built")
    if made_from is not None and record.made_from != made_from:
        return Outcome(task.name, "incomplete", "the definition or the source files have changed")
    return outcome


def count_files(task: Task, out: Path, samples: Sequence[int] = SAMPLES) -> tuple[int, int]:
    """Return the numbers of existing and of expected files."""
    names = file_names(task, samples)
    return sum((out / task.name / name).is_file() for name in names), len(names)


def _compared(task: Task, sums: Mapping[str, str]) -> Outcome:
    published = published_sums().get(task.name, {})
    known = [name for name in sums if name in published]
    if not known:
        return Outcome(task.name, "built")
    other = [name for name in known if sums[name] != published[name]]
    if not other:
        return Outcome(task.name, "verified")
    detail = f"{len(other)} of {len(known)} files differ from the published ones"
    if task.references == "distinct":  # the items of a Python set
        detail += "; the published order of reference answers is unknown"
    return Outcome(task.name, "differs", detail)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _read_record(folder: Path) -> _Built:
    """Return the build record of a task; empty if there is none."""
    with suppress(MttlError):
        return _Built.read(folder / RECORD)
    return _Built()


def build_many(
    tasks: Sequence[Task],
    out: Path,
    *,
    samples: Sequence[int],
    raw: Path | None = None,
    n_workers: int = 1,
    build: Callable[..., Outcome] = build_task,
) -> Iterator[Outcome]:
    """Build tasks into a gym, and yield the outcome of each when it has finished.

    Raw records of the folder ``raw`` replace the hub. With several processes, the function
    ``build`` of one task must be importable. Raises an `OSError` if the disk is full or read-only,
    after the processes have stopped.
    """
    one = partial(_guarded, build, out=out, samples=samples, raw=raw)
    if n_workers == 1 or len(tasks) == 1:
        yield from map(one, tasks)
    else:
        yield from _in_processes(tasks, one, n_workers)


def _guarded(build: Callable[..., Outcome], task: Task, **options: Any) -> Outcome:
    """Build a task; unexpected errors become its outcome."""
    try:
        return build(task, **options)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_REFUSES:
            raise
        return Outcome(task.name, "failed", f"{type(error).__name__}: {error}")


def _in_processes(
    tasks: Sequence[Task], one: Callable[[Task], Outcome], n_workers: int
) -> Iterator[Outcome]:
    context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":  # fork from a process that has imported this module
        context.set_forkserver_preload([__name__])
    waiting = list(reversed(tasks))
    running: dict[Any, tuple[Any, Task]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n_workers:
                task = waiting.pop()
                connection, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, one, task), daemon=True)
                process.start()
                theirs.close()
                running[connection] = process, task
            for connection in wait(list(running)):
                try:
                    answer = connection.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    name, why = running[connection][1].name, "possibly for lack of memory"
                    answer = Outcome(name, "failed", f"its process died, {why}")
                if isinstance(answer, OSError):
                    raise answer
                del running[connection]
                yield answer
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join(_SECONDS_TO_LEAVE)
            process.kill()


def _serve(connection: Connection, one: Callable[[Task], Outcome], task: Task) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # removes incomplete files
    try:
        answer: Any = one(task)
    except OSError as error:
        answer = OSError(error.errno, error.strerror, error.filename)
    connection.send(answer)
