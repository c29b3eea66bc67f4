"""Whole tensors of a model that is spread over processes; of any other model, its own.

What leaves a training (checkpoints, the folder ``skills/``, arrays of the routing) is made of whole
tensors, so that nothing that reads it knows how the model was trained.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

Value = TypeVar("Value")


def is_sharded(model: nn.Module) -> bool:
    """Tell whether a model's tensors are spread over processes."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def is_first() -> bool:
    """Tell whether this is the process that writes."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def of_first(value: Value) -> Value:
    """Return what the first process knows; the processes must ask for it together."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor; the processes must ask for it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def for_first(tensor: Tensor) -> Tensor:
    """Return all of a tensor to the first process, on the CPU, and an empty one to the others.

    So nothing but the first one's CPU ever holds more than one whole tensor.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    value = tensor.full_tensor()
    return value.cpu() if is_first() else value.new_empty(0, device="cpu")


def spread_like(value: Any, target: Tensor) -> Any:
    """Spread a whole tensor, the same in every process, as a target of its shape is.

    All else is left alone.
    """
    same_shape = isinstance(value, Tensor) and value.shape == target.shape
    if not same_shape or not isinstance(target, DTensor) or isinstance(value, DTensor):
        return value
    value = value.to(target.device, target.dtype)
    # Each process takes its part of what it has: nothing is sent.
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)


def load_whole(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into a module, spread over processes or not, by the names of its state."""
    own = module.state_dict()
    parts = {
        name: spread_like(value, own[name]) if name in own else value
        for name, value in tensors.items()
    }
    module.load_state_dict(parts, strict=False)


@contextmanager
def whole_parameters(module: nn.Module) -> Iterator[None]:
    """Let methods of a module read its parameters, which else only its ``forward`` can.

    The processes must enter it together.
    """
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()
