"""Archives of numpy arrays (``.npz``), read without trust.

numpy makes room for whatever an array's header claims before it looks for the bytes, and unpacks
whatever is packed. Here both are compared with what is there first.
"""

import stat
import zipfile
import zlib
from math import prod
from pathlib import Path

import numpy as np

# Bytes of all arrays together that may be packed as tightly as zeros are; beyond, far less.
_SMALL, _TIGHTEST = 1 << 27, 200


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return all arrays of an archive by name; nothing in it is run.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is no such archive, damaged, holds objects, claims more than it holds, or
            unpacks to far more than it is.
    """
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            total = sum(part.file_size for part in parts)
            if total > _SMALL and total > _TIGHTEST * status.st_size:
                raise ValueError(
                    f"its {status.st_size:,} bytes unpack to {total:,}, more than {_TIGHTEST} times"
                )
            names = [part.filename.removesuffix(".npy") for part in parts]
            if len(set(names)) < len(names):
                raise ValueError("an array stands there twice")
            return {name: _array(archive, part) for name, part in zip(names, parts, strict=True)}
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    except (TypeError, NotImplementedError, RuntimeError, OverflowError, SyntaxError) as error:
        # Methods of packing that Python lacks, encrypted parts, headers that are none.
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _array(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(part) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        begun = file.tell()
        if dtype.hasobject:
            raise ValueError(f"'{part.filename}' holds objects, which can run any program")
        if min(shape, default=0) < 0 or begun + prod(shape) * dtype.itemsize != part.file_size:
            raise ValueError(f"'{part.filename}' claims an array of shape {shape} of {dtype}")
    with archive.open(part) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # reading to the end compares the checksum
            raise ValueError(f"'{part.filename}' holds more than an array")
    return array
