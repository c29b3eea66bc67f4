"""Files that are written whole or not at all, and the folder of those that ship."""

import csv
import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

PART = ".part"  # of the name of a file that is being written
# Answers of a disk that no other file would change.
DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)
# Answers of a file system without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path that takes the name ``path`` once the block has succeeded.

    It is flushed to the disk first, so that after a crash the file is the old or the new one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(target)
    temporary.touch()
    mode = temporary.stat().st_mode
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(mode)  # safetensors makes private files
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder that takes the name ``path`` once the block has succeeded.

    Raises:
        FileExistsError: If ``path`` exists, unless it is an empty folder, or is to be replaced.
    """
    target = Path(path)
    if target.is_file() or (not replace and target.is_dir() and any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    temporary = _temporary(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
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


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def locked(path: str | Path, refusal: Exception | None = None) -> Iterator[None]:
    """Hold a file for this process alone while the block runs; the file is made, and stays.

    While another process holds it, wait, or raise the ``refusal``. Where the file system has no
    locks, nothing is held.
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
    """Write a CSV file atomically; where a row lacks a column, its cell is empty."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def append_line(path: str | Path, line: str) -> None:
    """Add a line to a file and flush it to the disk; a line that was cut off is dropped."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    drop_cut_line(path)
    with Path(path).open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def drop_cut_line(path: str | Path) -> None:
    """Drop what follows the last line end of a file, if there is one: a killed process."""
    if Path(path).is_file():
        with Path(path).open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def shipped_folder() -> Path:
    """Return the folder of ``configs/`` and ``data/``: in a wheel the package, else above it."""
    package = Path(__file__).parents[1]
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent
