"""Files that are written whole or not at all."""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FILM_ENDINGS = (".gif", ".mp4")


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Give a path beside ``path``, of the same suffix, that takes its name if the block succeeds.

    Args:
        path: The file to write; missing parent folders are made.

    Yields:
        Where to write. After an error nothing is left behind; what a process that was killed has
        left is removed by the next one that writes the file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    for left_behind in target.parent.glob(f".{glob.escape(target.name)}.????????.part"):
        with _locked(left_behind) as alone:
            if alone:
                shutil.rmtree(left_behind, ignore_errors=True)
    # A private folder, so that the file inside gets the usual permissions of a new file.
    with (
        tempfile.TemporaryDirectory(".part", f".{target.name}.", target.parent) as folder,
        _locked(Path(folder)),  # which tells others that it is in use
    ):
        temporary = Path(folder) / target.name
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder inside a ``with`` block; False if another has, or it cannot be locked here."""
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:
        alone = False
    try:
        yield alone
    finally:
        os.close(handle)
