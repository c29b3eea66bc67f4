"""Files that are written whole or not at all."""

import csv
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

# What a disk may answer, whatever file is next.
DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)
# What a file system without locks may answer.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its name once the block has succeeded.

    The content is flushed to the disk before the rename, so that after a crash the file is the old
    one or the new one. After an error nothing is left behind.

    Args:
        path: The file to write; missing parent folders are made.

    Yields:
        Where to write.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes private files; give the usual permissions.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside ``path`` that takes its name once the block has succeeded.

    After an error nothing is left behind.

    Args:
        path: The folder to make; missing parent folders are made.

    Yields:
        Where to write.

    Raises:
        FileExistsError: If there is something at ``path`` already, but for an empty folder.
    """
    target = Path(path)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(path: str | Path, refusal: Exception | None = None) -> Iterator[None]:
    """Hold a file for this process alone while the block runs.

    Where the file system has no locks, nothing is held.

    Args:
        path: The file; it is made where it is missing, and stays. The lock ends with the process.
        refusal: Raised if another process holds it; a `BlockingIOError` by default.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
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
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    drop_cut_line(path)
    with Path(path).open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


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
