"""Files that are written whole or not at all."""

import csv
import ctypes
import errno
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# What a disk may answer, whatever file is next.
DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)
# What a file system without locks may answer.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
GONE = "its folder was removed meanwhile"


class FolderGoneError(FileNotFoundError):
    """The folder of a file was removed while the file was written."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its name once the block has succeeded.

    The content is flushed to the disk before the rename, so that after a crash the file is the old
    one or the new one. After an error nothing is left behind; what a process that was killed has
    left is removed by the next one that writes the file.

    Args:
        path: The file to write; missing parent folders are made.

    Yields:
        Where to write.

    Raises:
        FolderGoneError: If the folder was removed meanwhile.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)

    def make() -> Path:
        handle, name = tempfile.mkstemp(*_temporary_name(target), target.parent)
        os.close(handle)
        return Path(name)

    with _held(make, target) as temporary:
        try:
            yield temporary
            _flush(temporary)
            # mkstemp makes private files; give the usual permissions.
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its name once the block has succeeded.

    Its files are flushed first. After an error nothing is left behind; what a process that was
    killed has left is removed by the next one that makes the folder.

    Args:
        path: The folder to make; missing parent folders are made.
        replace: Let it take the place of an earlier one.

    Yields:
        Where to write.

    Raises:
        FileExistsError: If there is something at ``path`` already, but for an empty folder or one
            that may be replaced.
        FolderGoneError: If the folder above was removed meanwhile.
    """
    target = Path(path)
    if target.is_file() or (not replace and target.is_dir() and any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    target.parent.mkdir(parents=True, exist_ok=True)

    def make() -> Path:
        return Path(tempfile.mkdtemp(*_temporary_name(target), target.parent))

    with _held(make, target) as temporary:
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _flush(file)
            temporary.chmod(0o777 & ~_umask())
            if not (replace and target.is_dir()):
                temporary.replace(target)
            elif not _exchange(temporary, target):
                earlier = temporary.with_suffix(".earlier")
                target.replace(earlier)
                try:
                    temporary.replace(target)
                finally:  # it is removed below, or put back
                    earlier.replace(temporary if target.exists() else target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders change places in one step; False where the system or the disk cannot."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return (
        rename is not None
        and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
    )


def _temporary_name(target: Path) -> tuple[str, str]:
    """Return suffix and prefix."""
    return ".part", f".{target.name}."


@contextmanager
def _held(make: Callable[[], Path], target: Path) -> Iterator[Path]:
    """Make a temporary file or folder and lock it, which tells others that it is in use."""
    for left_behind in target.parent.glob(f".{glob.escape(target.name)}.????????.part"):
        _remove_unless_held(left_behind)
    while True:
        try:
            temporary = make()
            handle = os.open(temporary, os.O_RDONLY)
        except FileNotFoundError as error:
            if target.parent.is_dir():  # another process took it for one that was left behind
                continue
            raise FolderGoneError(errno.ENOENT, GONE, str(target)) from error
        # It may still have been removed before it was locked.
        if _lock(handle) and target.parent.is_dir() and not temporary.exists():
            os.close(handle)
            continue
        try:
            yield temporary
        except FileNotFoundError as error:
            if temporary.parent.is_dir():
                raise
            raise FolderGoneError(errno.ENOENT, GONE, str(target)) from error
        finally:
            os.close(handle)
        return


def _remove_unless_held(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # it has just gone, or belongs to somebody else
        return
    try:
        if not _lock(handle):
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file or folder; False if another process has, or nothing can be locked here."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def locked(
    path: str | Path, refusal: Exception | None = None, *, wait: bool = False
) -> Iterator[None]:
    """Hold a file for this process alone while the block runs.

    Where the file system has no locks, nothing is held.

    Args:
        path: The file; it is made where it is missing, and stays. The lock ends with the process.
        refusal: Raised if another process holds it; a `BlockingIOError` by default.
        wait: Wait for that process instead.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout as error:
        busy = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        raise refusal or busy from error
    except NotImplementedError:
        pass
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def write_atomic(path: str | Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` with a temporary path and give the result the name ``path``."""
    with atomic_path(path) as temporary:
        write(temporary)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_table(
    path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write a CSV file atomically.

    Args:
        path: The file.
        columns: Its head.
        rows: Values by column; where one is missing, the cell is empty.
    """
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def append_line(path: str | Path, line: str) -> None:
    """Add a line to a file and flush it to the disk; a line before it that was cut off is dropped.

    Args:
        path: The file; it is made where it is missing.
        line: Without its end.

    Raises:
        FolderGoneError: If the folder was removed meanwhile.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        drop_cut_line(path)
        with Path(path).open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError as error:  # the folder was there a moment ago
        raise FolderGoneError(errno.ENOENT, GONE, str(path)) from error


def drop_cut_line(path: str | Path) -> None:
    """Drop what follows the last line end of a file, as a killed process leaves it.

    Args:
        path: The file; it need not exist.
    """
    if Path(path).is_file():
        with Path(path).open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
