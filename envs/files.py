"""Files that are written whole or not at all, and archives of arrays."""

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Give a path beside ``path``, of the same suffix, that takes its name if the block succeeds.

    Missing parent folders are made. After an error nothing is left behind.
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


def load_arrays(path: str | Path) -> "dict[str, np.ndarray]":
    """Return all arrays of an ``.npz`` archive by name; nothing in it is run.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged, another file, or holds objects, which could run any program.
    """
    import numpy as np  # the help of commands is written without it

    try:
        with Path(path).open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            return dict(archive)
    except FileNotFoundError:
        raise
    except (EOFError, MemoryError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error) or type(error).__name__) from error
