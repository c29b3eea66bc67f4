"""What may happen to a command: it dies, the disk is full or must not be written, its folder goes.

A fault strikes before the n-th change of the file system that Python code makes: an opening for
writing, a rename, a removal, a new folder, a flush. They are counted by an audit hook.
"""

import errno
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["none", "kill", "cut", "full", "readonly", "gone"]
_PATH_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        kind: ``kill``: the process dies before the change; ``cut``: just after, where the change
            opens a file to overwrite it; ``full``: from here on nothing can be written;
            ``readonly``: nothing can be changed; ``gone``: a folder is removed.
        at: The number of the change, from 1.
        folder: Which folder goes.
    """

    kind: Kind = "none"
    at: int = 0
    folder: str = ""


class Changes:
    """Counts changes in this process, and lets a fault strike.

    Args:
        fault: The fault.
        roots: Changes elsewhere do not count.
        report: File whose existence shows that the fault occurred.
    """

    def __init__(self, fault: Fault, roots: tuple[str, ...], report: Path) -> None:
        self.fault, self.roots, self.report = fault, roots, report
        self.count = 0
        self._owner, self._busy = os.getpid(), False

    def install(self) -> None:
        """Begin to count; there is no way back."""
        flush = os.fsync

        def fsync(descriptor: int) -> None:
            self.on_event("os.fsync", ())
            flush(descriptor)

        os.fsync = fsync
        sys.addaudithook(self.on_event)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an event that changes the file system, and strike if it is time.

        Raises:
            OSError: If the disk is full or must not be written.
        """
        if self._busy or os.getpid() != self._owner or not self._counts(event, arguments):
            return
        self.count += 1
        if self.fault.kind == "none" or self.count < self.fault.at:
            return
        self._busy = True
        try:
            self._strike(event, arguments)
        finally:
            self._busy = False

    def _counts(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "os.fsync":
            return True
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str | bytes) or not flags & _WRITES:
                return False
        elif event in _PATH_CHANGES:
            path = arguments[0]
        else:
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self.roots)

    def _strike(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind, opens = self.fault.kind, event == "open"
        if kind == "gone":
            self._remove()
            return
        self.report.touch()
        if kind in ("kill", "cut"):
            if kind == "cut" and opens and arguments[2] & os.O_TRUNC:
                os.close(os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "full" and (opens or event in ("os.mkdir", "os.fsync")):
            raise _refusal(errno.ENOSPC, arguments)
        if kind == "readonly":
            raise _refusal(errno.EROFS, arguments)

    def _remove(self) -> None:
        """Remove the folder, once it is there."""
        if os.path.isdir(self.fault.folder) and not self.report.exists():
            self.report.touch()
            shutil.rmtree(self.fault.folder)


def _refusal(number: int, arguments: tuple[Any, ...]) -> OSError:
    where = [os.fsdecode(arguments[0])] if arguments else []
    return OSError(number, os.strerror(number), *where)
