"""Reading and atomic writing of safetensors files."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.io.files import atomic_path
from mttl.io.reading import reason, require_file

_REFUSAL = re.compile(r"\(os error (\d+)\)")


def read_tensors(path: str | Path, advice: str = "Copy it again") -> dict[str, Tensor]:
    """Return the tensors of a file, sorted by name; ``advice`` is for damaged files.

    Raises a `CheckpointError` if the file is missing or damaged, or a value is not finite.
    """
    require_file(path, CheckpointError)
    try:
        tensors = dict(sorted(load_file(path).items()))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"'{path}' is damaged ({reason(error)}). {advice}") from error
    strange = next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)
    if strange is not None:
        raise CheckpointError(f"'{path}': '{strange}' has values that are not finite. {advice}")
    return tensors


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors that do not share memory, by name, and metadata.

    The `OSError` of a full disk names the file, unlike the library's.
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
