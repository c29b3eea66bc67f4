"""PyTorch's files of tensors and plain data: checkpoints and the states of loops."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from mttl.io.errors import CheckpointError
from mttl.io.reading import reason, require_file


def load_torch(path: str | Path, advice: str) -> Any:
    """Read a file of `torch.save` on the CPU; no code of the file runs.

    Raises:
        CheckpointError: If it is missing, damaged, or asks for more than plain data.
    """
    require_file(path, CheckpointError)
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not look at the checksums
            if (part := archive.testzip()) is not None:
                raise ValueError(f"the checksum of its part {part} is wrong")
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        state = f"is damaged ({reason(error)})"
        if "Weights only load failed" in state or "weights_only" in state:
            state = "asks for more than tensors and plain data, which could run any program"
        raise CheckpointError(f"'{path}' {state}. {advice}") from error
