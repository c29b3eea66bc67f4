"""Archives of numpy arrays (``.npz``); nothing in them is run."""

import zipfile
import zlib
from pathlib import Path

import numpy as np


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return all arrays of an archive by name.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not such an archive, damaged, or holds objects, which could run any
            program.
    """
    try:
        with Path(path).open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            return dict(archive)
    except FileNotFoundError:
        raise
    except (EOFError, MemoryError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error) or type(error).__name__) from error
