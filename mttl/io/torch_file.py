"""PyTorch's files of tensors and plain data: checkpoints and the states of loops.

Such a file is a zip archive of a pickle and the bytes of tensors. PyTorch reads it without looking
at the archive's checksums, and by default runs what the pickle asks for. Here the checksums are
compared first, and nothing is run: the pickle may hold tensors, numbers, texts and containers.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from mttl.errors import CheckpointError
from mttl.io.reading import reason, require_file

_BLOCK = 1 << 22


def load_torch(path: str | Path, advice: str) -> Any:
    """Read a file of `torch.save` on the CPU.

    Args:
        path: The file.
        advice: What to do where it cannot be used.

    Raises:
        CheckpointError: If it is missing, damaged, or asks for more than plain data.
    """
    size = require_file(path, CheckpointError)
    try:
        _check_archive(Path(path), size)
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        text = reason(error)
        if "Weights only load failed" in text or "weights_only" in text:
            state = (
                "asks for more than tensors and plain data, which could run any program (or an "
                "earlier version wrote it)"
            )
        else:
            state = f"is damaged ({text})"
        raise CheckpointError(f"'{path}' {state}. {advice}") from error


def _check_archive(path: Path, size: int) -> None:
    """Compare the checksums of all parts.

    Raises:
        ValueError: If one is another, or parts are packed: PyTorch packs none.
    """
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        packed = [part.filename for part in parts if part.compress_type != zipfile.ZIP_STORED]
        if packed or sum(part.file_size for part in parts) > size:
            raise ValueError("its parts are packed, and PyTorch packs none")
        names = [part.filename for part in parts]
        if len(set(names)) < len(names):
            raise ValueError("a part of it stands there twice")
        for part in parts:
            checksum = 0
            with archive.open(part) as file:
                while block := file.read(_BLOCK):
                    checksum = zlib.crc32(block, checksum)
            if checksum != part.CRC:
                raise ValueError(f"the checksum of its part {part.filename} is another")
