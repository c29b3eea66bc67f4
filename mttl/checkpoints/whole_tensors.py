"""Full tensors of a model that may be sharded over processes.

Checkpoints, ``skills/`` folders and routing arrays have full tensors, so that they do not depend on
how a model was trained.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from mttl.runtime.processes import rank

Value = TypeVar("Value")


def is_sharded(model: nn.Module) -> bool:
    """Return whether a model's tensors are sharded over processes."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def of_first(value: Value) -> Value:
    """Return the value of the first process; all processes must call it."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor; all processes must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def for_first(tensor: Tensor) -> Tensor:
    """Return the full tensor on the CPU of the first process, and an empty one on the others.

    Only the first process's CPU has more than one full tensor at a time.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    value = tensor.full_tensor()
    return value.cpu() if rank() == 0 else value.new_empty(0, device="cpu")


def spread_like(value: Any, target: Tensor) -> Any:
    """Shard a full tensor, identical in all processes, like a target of the same shape.

    Other values are returned unchanged.
    """
    same_shape = isinstance(value, Tensor) and value.shape == target.shape
    if not same_shape or not isinstance(target, DTensor) or isinstance(value, DTensor):
        return value
    value = value.to(target.device, target.dtype)
    # Each process takes its shard locally; nothing is sent.
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)


def load_whole(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy full tensors into a module, sharded or not, by their names."""
    own = module.state_dict()
    parts = {
        name: spread_like(value, own[name]) if name in own else value
        for name, value in tensors.items()
    }
    module.load_state_dict(parts, strict=False)


@contextmanager
def whole_parameters(module: nn.Module) -> Iterator[None]:
    """Context manager that gives access to a sharded module's full parameters.

    All processes must enter it.
    """
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()
