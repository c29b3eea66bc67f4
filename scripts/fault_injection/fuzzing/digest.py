"""A digest of what a reader returned: equal for equal content, whatever folder it was read from."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn


def digest_of(value: Any, root: Path) -> str:
    """Return a digest of a value.

    Args:
        value: Numbers, texts, tensors, arrays, containers, dataclasses and modules.
        root: The folder of the files; its name in texts does not count.
    """
    content = hashlib.sha256()
    _add(content, value, str(root))
    return content.hexdigest()


def _add(content: Any, value: Any, root: str) -> None:
    content.update(type(value).__name__.encode() + b"(")
    if isinstance(value, (str, Path)):
        content.update(str(value).replace(root, "").encode("utf-8", "surrogatepass"))
    elif isinstance(value, float):
        content.update(struct.pack("d", value))
    elif isinstance(value, torch.Tensor):
        whole = value.detach().cpu().contiguous()
        content.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
        content.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        content.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, nn.Module):
        _add(content, dict(value.state_dict()), root)
    elif isinstance(value, BaseModel):
        _add(content, value.model_dump(), root)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            _add(content, key, root)
            _add(content, value[key], root)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(content, item, root)
    elif isinstance(value, (set, frozenset)):
        for item in sorted(value, key=repr):
            _add(content, item, root)
    elif is_dataclass(value):
        for field in fields(value):
            _add(content, getattr(value, field.name), root)
    else:
        content.update(repr(value).replace(root, "").encode())
    content.update(b")")
