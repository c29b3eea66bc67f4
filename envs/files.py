"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILM_ENDINGS = (".gif", ".mp4")


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Give a path beside ``path``, of the same suffix, that takes its name if the block succeeds.

    Args:
        path: The file to write; missing parent folders are made.

    Yields:
        Where to write. After an error nothing is left behind.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A private folder, so that the file inside gets the usual permissions of a new file.
    with tempfile.TemporaryDirectory(".part", f".{target.name}.", target.parent) as folder:
        temporary = Path(folder) / target.name
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
