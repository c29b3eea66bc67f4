"""A file of finished jobs, a line of JSON each, that an interrupted command continues."""

import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from mttl.io.errors import MttlError
from mttl.io.files import append_line, drop_cut_line, locked
from mttl.io.reading import parse_json, read_bytes


class JobResult(Protocol):
    """The result of one job, which becomes a line of JSON."""

    # ruff: noqa: D102
    @property
    def job(self) -> Hashable: ...
    def row(self) -> dict[str, Any]: ...
    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self: ...


Result = TypeVar("Result", bound=JobResult)


class ResultLines(Generic[Result]):
    """The results of finished jobs; every line is whole or not there.

    Args:
        path: The file that is written.
        kind: Class of the results.
        others: Files of other writers, which are only read.

    Attributes:
        finished: The results by job.

    Raises:
        MttlError: If a line of a file is damaged.
    """

    advice = ", or choose another folder with --out"

    def __init__(self, path: Path, kind: type[Result], others: Iterable[Path] = ()) -> None:
        self.path = path
        self.kind = kind
        self.finished: dict[Any, Result] = {}
        self._writing = False
        for known in sorted({path, *others}):
            self._read(known)

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Keep other processes from writing the same file inside a ``with`` block.

        A last line that was cut off is dropped, and what another process wrote since is read.

        Raises:
            MttlError: If another process writes the file.
        """
        refusal = MttlError(f"another process writes '{self.path}'; wait for it{self.advice}")
        with locked(self._lock, refusal):
            drop_cut_line(self.path)
            self._read(self.path)
            self._writing = True
            try:
                yield self
            finally:
                self._writing = False

    def add(self, result: Result) -> None:
        """Append a line and flush it to the disk.

        Raises:
            MttlError: If another process writes the file, or its folder was removed meanwhile.
        """
        if not self._writing:
            with self.writing():
                return self.add(result)
        if not self._lock.exists():
            raise MttlError(f"'{self.path}': the folder was removed meanwhile")
        append_line(self.path, json.dumps(result.row()))
        self.finished[result.job] = result

    @property
    def _lock(self) -> Path:
        return self.path.with_name(f".{self.path.name}.lock")

    def _read(self, path: Path) -> None:
        content = read_bytes(path, MttlError) if os.path.lexists(path) else b""
        # What follows the last line end is being written, or was cut off.
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                row = parse_json(line, f"line {number}", MttlError, dict)
                result = self.kind.from_row(row)
            except (MttlError, ValueError, KeyError, TypeError) as error:
                raise MttlError(
                    f"'{path}', line {number} is damaged ({error}); it must be a finished job in "
                    "JSON. Delete the line: a start of the same command runs its job again"
                ) from error
            self.finished[result.job] = result
