"""Rank and GPU of a process, and values gathered from all processes."""

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")


def gathered(value: Value) -> list[Value]:
    """Return the values of all processes in order of rank; all processes must call it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def rank() -> int:
    """Return the rank of this process, from 0."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_first_process() -> bool:
    """Return whether Lightning gives this process rank 0, also before processes are connected."""
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    return rank_zero_only.rank == 0


def device_of(number: int = 1) -> "torch.device":
    """Return the GPU for shard ``number`` of a job, from 1; the CPU if there is no GPU."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", (number - 1) % count) if count else torch.device("cpu")


def gpu_environment(number: int) -> dict[str, str]:
    """Return environment variables that restrict a process to one GPU; empty without a GPU.

    Processes are numbered from 1; further processes share GPUs.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    count = torch.cuda.device_count()
    # The current value may list some of the GPUs, by number or name.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return {"CUDA_VISIBLE_DEVICES": shown.split(",")[(number - 1) % count].strip()}
