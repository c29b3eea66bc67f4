"""Jobs that a command continues where it stopped: a file of their results, a line of JSON each."""

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

ELSEWHERE = "Use those, or another folder with --out"


# A `Record`, or a dataclass of pydantic, with its ``job``.
Result = TypeVar("Result", bound=Any)


class Diverged:
    """Collects the jobs whose training diverged: they have no result, and the others go on."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    @contextmanager
    def noted(self, job: object) -> Iterator[None]:
        """End a ``with`` block where a training diverges, and note the job."""
        try:
            yield
        except DivergedError as error:
            self.jobs.append(f"{job}: {error}")

    def report(self) -> None:
        """Raise a `DivergedError` that lists what diverged, if anything did."""
        if self.jobs:
            listed = "\n".join(self.jobs)
            raise DivergedError(f"{len(self.jobs)} diverged, and have no result:\n{listed}")


class ResumableJobs(Generic[Result]):
    """The ``finished`` results of a kind, by job; every line of the file is whole or not there.

    Files of other writers are only read; without a path, results are in memory alone.

    Raises:
        MttlError: If a line of a file is damaged.
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
        """Keep other processes from writing the same file inside a ``with`` block.

        A last line that was cut off is dropped, and what another process wrote since is read.

        Raises:
            MttlError: If another process writes the file.
        """
        if self._writing or self.path is None:
            yield self
            return
        refusal = MttlError(f"another process writes '{self.path}'; wait for it{self.advice}")
        with locked(_lock(self.path), refusal):
            drop_cut_line(self.path)
            self._read(self.path)
            self._writing = True
            try:
                yield self
            finally:
                self._writing = False

    def add(self, result: Result) -> None:
        """Append a line and flush it to the disk; refuse if the folder was removed meanwhile."""
        if self.path is not None:
            if not self._writing:
                with self.writing():
                    return self.add(result)
            if not _lock(self.path).exists():
                raise MttlError(f"'{self.path}': the folder was removed meanwhile")
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
        """Run the jobs without a result one after another; return which diverged.

        ``work`` gets a job, and what to call after each of its ``n_steps`` steps. A bar shows what
        it is ``doing``, unless a job has a bar of its own (``live=False``), and a line what is
        ``shown`` of each result. Jobs ``again`` are run though they have a result, which they keep.
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
        # What follows the last line end is being written, or was cut off.
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                row = parse_json(line, f"line {number}", MttlError)
                result = check(self.kind, row, "the job", MttlError)
            except MttlError as error:
                raise MttlError(
                    f"'{path}', line {number} is damaged ({error}). Delete the line: a start of "
                    "the same command runs its job again"
                ) from error
            self.finished[result.job] = result


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def keep_settings(
    path: Path,
    text: str,
    problem: str,
    advice: str = ELSEWHERE,
    ignore: tuple[str, ...] = (),
    but: tuple[str, ...] = (),
) -> None:
    """Write the settings that results are made from, or refuse to mix results of other settings.

    The message begins with ``problem``, names the settings that have changed and ends with
    ``advice``. Settings whose names begin with one of ``ignore`` may change, ``but`` for some.

    Raises:
        ConfigError: If the file holds other settings.
    """
    before = read_text(path, ConfigError) if path.is_file() else text
    if changed := changed_settings(before, text, ignore, but):
        raise ConfigError(f"{problem}: {', '.join(changed)}. {advice}")
    write_text(path, text)
