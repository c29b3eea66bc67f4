"""safetensors files, written whole or not at all."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mttl.io.files import atomic_path

_REFUSAL = re.compile(r"\(os error (\d+)\)")


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors that do not share memory, by name, and texts of the header.

    Raises:
        OSError: If the disk refuses; the error of the library names no file.
    """
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_path(path) as temporary:
            save_file(contiguous, temporary, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (refusal := _REFUSAL.search(str(error))) is None:
            raise
        number = int(refusal[1])
        raise OSError(number, os.strerror(number), str(path)) from error
