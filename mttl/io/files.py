"""Atomic writing of files, and the folder of shipped files."""

import csv
import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

PART = ".part"  # suffix of temporary files
THREADS = 16  # that wait for the disk
# Errors of a disk on which no other file can be written either.
DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)
# Errors of a file system without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, renamed to ``path`` on success.

    The file is flushed to disk first, so that after a crash it is the old or the new one; in a
    `new_folder`, all files are flushed together at its end.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(target)
    temporary.touch()
    mode = temporary.stat().st_mode
    try:
        yield temporary
        if all(parent.suffix != PART for parent in target.parents):
            _flush(temporary)
        temporary.chmod(mode)  # safetensors creates private files
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Context manager that yields a temporary folder, renamed to ``path`` on success.

    Raises a `FileExistsError` if ``path`` exists, except empty folders, or with ``replace``.
    """
    target = Path(path)
    if target.is_file() or (not replace and target.is_dir() and any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    temporary = _temporary(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(_flush, filter(Path.is_file, temporary.rglob("*"))))
        if not (replace and target.is_dir()):
            temporary.replace(target)
        elif not _exchange(temporary, target):
            earlier = temporary.with_suffix(".earlier")
            target.replace(earlier)
            try:
                temporary.replace(target)
            finally:  # removed below, or restored
                earlier.replace(temporary if target.exists() else target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; return False if the system does not support it."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return (
        rename is not None
        and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
    )


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def locked(path: str | Path, refusal: Exception | None = None) -> Iterator[None]:
    """Context manager that locks a file against other processes; the file is created and remains.

    If another process has the lock, wait, or raise ``refusal`` if given. On file systems without
    locks, nothing is locked.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=refusal is None)
    except Timeout as error:
        assert refusal is not None
        raise refusal from error
    except NotImplementedError:
        pass
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(
    path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write a CSV file atomically; missing cells are empty."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def append_line(path: str | Path, line: str) -> None:
    """Append a line to a file and flush it to disk; an incomplete last line is dropped first."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    drop_cut_line(path)
    with Path(path).open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def drop_cut_line(path: str | Path) -> None:
    """Remove an incomplete last line of a file, left by a killed process."""
    if Path(path).is_file():
        with Path(path).open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def shipped_folder() -> Path:
    """Return the folder of ``configs/`` and ``data/``: in a wheel the package, else its parent."""
    package = Path(__file__).parents[1]
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent
