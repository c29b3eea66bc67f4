"""Rank of a process, and values gathered from all processes of a run."""

from typing import TypeVar

import torch.distributed as dist

Value = TypeVar("Value")


def gathered(value: Value) -> list[Value]:
    """Return the values of all processes in the order of their ranks; all must call it together."""
    if not _several():
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if _several() else 0


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()
