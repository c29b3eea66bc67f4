"""Reading of PyTorch files with tensors and plain data."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from mttl.io.errors import CheckpointError
from mttl.io.reading import reason, require_file


def load_torch(path: str | Path, advice: str) -> Any:
    """Return the content of a file of `torch.save` on the CPU, without executing code.

    Raises a `CheckpointError` if it is missing or damaged, or contains more than plain data.
    """
    require_file(path, CheckpointError)
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not verify checksums
            if (part := archive.testzip()) is not None:
                raise ValueError(f"wrong checksum of {part}")
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        state = f"is damaged ({reason(error)})"
        if "Weights only load failed" in state or "weights_only" in state:
            state = "has more than tensors and plain data, so loading it could run code"
        raise CheckpointError(f"'{path}' {state}. {advice}") from error
