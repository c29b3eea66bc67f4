"""Resumable jobs, with one line of JSON per result in a file."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from rich.console import Console

from mttl.checkpoints.run_folder import changed_settings
from mttl.io.errors import ConfigError, DivergedError, MttlError
from mttl.io.files import append_line, drop_cut_line, locked, write_text
from mttl.io.reading import parse_json, read_bytes, read_text
from mttl.io.record import as_row, check
from mttl.runtime.progress_bar import counting

# A `Record`, or a dataclass of pydantic, with its ``job``.
Result = TypeVar("Result", bound=Any)


class Diverged:
    """Collects jobs whose training diverged, which have no result."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    @contextmanager
    def noted(self, job: object) -> Iterator[None]:
        """Context manager that catches a `DivergedError` and records the job."""
        try:
            yield
        except DivergedError as error:
            self.jobs.append(f"{job}: {error}")

    def report(self) -> None:
        """Raise a `DivergedError` that lists the diverged jobs, if any."""
        if self.jobs:
            listed = "\n".join(self.jobs)
            raise DivergedError(f"these jobs diverged and have no result:\n{listed}")


class ResumableJobs(Generic[Result]):
    """Results of finished jobs, by job, in a file with one complete line each.

    Files of other writers are only read; without a path, results are only in memory. Raises a
    `MttlError` if a line of a file is damaged.
    """

    advice = ", or choose another folder with --out"

    def __init__(self, path: Path | None, kind: type[Result], others: Iterable[Path] = ()) -> None:
        self.path = path
        self.kind = kind
        self.finished: dict[Any, Result] = {}
        self._writing = False
        for known in sorted({*others, path} if path else others):
            self._read(known)

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Context manager that locks the file against other writers.

        An incomplete last line is dropped, and new lines of other processes are read. Raises a
        `MttlError` if another process is writing the file.
        """
        if self._writing or self.path is None:
            yield self
            return
        refusal = MttlError(f"another process is writing '{self.path}'; wait for it{self.advice}")
        with locked(_lock(self.path), refusal):
            drop_cut_line(self.path)
            self._read(self.path)
            self._writing = True
            try:
                yield self
            finally:
                self._writing = False

    def add(self, result: Result) -> None:
        """Append a result and flush it to disk; raises an `MttlError` if the folder was removed."""
        if self.path is not None:
            if not self._writing:
                with self.writing():
                    return self.add(result)
            if not _lock(self.path).exists():
                raise MttlError(f"'{self.path}': the folder was removed during the command")
            append_line(self.path, json.dumps(as_row(result)))
        self.finished[result.job] = result

    def run(
        self,
        jobs: Sequence[Any],
        work: Callable[[Any, Callable[[], object]], Result],
        console: Console,
        *,
        doing: str,
        n_steps: int = 1,
        shown: Callable[[Result], str] | None = None,
        live: bool = True,
        again: Collection[Any] = (),
    ) -> Diverged:
        """Run the jobs without a result, one after another; return the diverged ones.

        ``work`` receives a job and a function to call after each of its ``n_steps`` steps. A
        progress bar shows ``doing``, unless a job has its own (``live=False``), and a line per job
        shows ``shown`` of its result. Jobs in ``again`` are repeated, but keep their result.
        """
        diverged = Diverged()
        if all(job in self.finished and job not in again for job in jobs):
            return diverged
        with self.writing():
            todo = [job for job in jobs if job not in self.finished or job in again]
            with counting(console, doing, len(todo) * n_steps, live=live) as count:
                for number, job in enumerate(todo, 1):
                    result = None
                    with diverged.noted(job):
                        result = work(job, count.advance)
                        if job not in self.finished:
                            self.add(result)
                    count.set(number * n_steps)
                    if shown is not None:
                        said = "diverged" if result is None else shown(result)
                        line = f"{number} of {len(todo)}: {job}: {said}{count.left}"
                        console.print(line, highlight=False)
        return diverged

    def _read(self, path: Path) -> None:
        content = read_bytes(path, MttlError) if os.path.lexists(path) else b""
        # Text after the last line end is incomplete.
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                row = parse_json(line, f"line {number}", MttlError)
                result = check(self.kind, row, "the job", MttlError)
            except MttlError as error:
                raise MttlError(
                    f"'{path}', line {number} is damaged ({error}). Delete the line and repeat the "
                    "command to run its job again"
                ) from error
            self.finished[result.job] = result


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def keep_settings(
    path: Path,
    text: str,
    problem: str,
    advice: str = "Use those, or another folder with --out",
    ignore: tuple[str, ...] = (),
    but: tuple[str, ...] = (),
) -> None:
    """Record the settings of results, or reject a change of settings.

    The message consists of ``problem``, the changed settings, and ``advice``. Settings whose names
    begin with one of ``ignore`` may change, except those in ``but``. Raises a `ConfigError` if the
    file has other settings.
    """
    before = read_text(path, ConfigError) if path.is_file() else text
    if changed := changed_settings(before, text, ignore, but):
        raise ConfigError(f"{problem}: {', '.join(changed)}. {advice}")
    write_text(path, text)
