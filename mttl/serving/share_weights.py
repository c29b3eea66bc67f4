"""Models that were loaded one by one share the memory of what is alike in them.

Adapted tasks are loaded whole, backbone and skills included, and most of it is the run's.
"""

from collections.abc import Sequence

import torch
from torch import nn


def share_weights(models: Sequence[nn.Module]) -> int:
    """Let parameters and buffers that are equal to those of an earlier model be these.

    Args:
        models: Of one structure, more or less; they are only to be read from now on.

    Returns:
        How many bytes are no longer held twice.
    """
    known: dict[str, list[torch.Tensor]] = {}
    saved = 0
    for model in dict.fromkeys(models):
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            mine = known.setdefault(name, [])
            same = next((other for other in mine if _alike(other, tensor)), None)
            if same is None:
                mine.append(tensor)
            else:
                tensor.data = same.data
                saved += tensor.nbytes
    return saved


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        and one.data_ptr() != other.data_ptr()
        and torch.equal(one, other)
    )
