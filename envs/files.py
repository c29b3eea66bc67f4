"""Atomic writing of files, and reading of array archives."""

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
    """Yield a temporary path with the same suffix, which replaces ``path`` if the block succeeds.

    Missing parent folders are created. After an error the temporary file is removed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A temporary folder, so that the file has the usual permissions of a new file.
    with tempfile.TemporaryDirectory(".part", f".{target.name}.", target.parent) as folder:
        temporary = Path(folder) / target.name
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)


def load_arrays(path: str | Path) -> "dict[str, np.ndarray]":
    """Return all arrays of an ``.npz`` archive by name, without executing code.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of another format, or contains pickled objects.
    """
    import numpy as np  # not needed for the help of commands

    try:
        with Path(path).open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            return dict(archive)
    except FileNotFoundError:
        raise
    except (EOFError, MemoryError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error) or type(error).__name__) from error
