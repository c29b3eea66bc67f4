"""Spread a skilled model over processes: block by block, the frozen base, skills and router.

Every process holds a part of each tensor. A block is put together just before it computes and
taken apart afterwards, and gradients and the optimizer's state exist in parts only.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard

from mttl.checkpoints.whole_tensors import is_first, is_sharded, of_first
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.targets import block_paths


def shard_model(model: SkilledModel, mesh: DeviceMesh, device: torch.device) -> None:
    """Give every process its part of the first one's model, in place.

    Only the first process needs weights: those of the others may be on the meta device. No process
    but the first ever holds more than one block whole. A model that is spread already stays as it
    is.

    Args:
        model: Model with the same structure in all processes.
        mesh: Of all of them, one dimension.
        device: Of this one.
    """
    if is_sharded(model):
        return
    backbone, received = model.backbone, set()
    if hasattr(backbone, "generation_config"):  # may stand beside the weights, in a file
        backbone.generation_config = of_first(backbone.generation_config)
    blocks = [backbone.get_submodule(path) for path in block_paths(backbone)]
    # Backbone and router are called one after the other: each is a root. A root stays whole until
    # its backward pass is over, so that the router's prior can read its parameters.
    for unit in (*blocks, backbone, model.router):
        _receive(unit, device, received)
        fully_shard(unit, mesh=mesh, shard_placement_fn=partial(_placement, mesh.size()))
    # Processes generate as many tokens as the one with the longest answer.
    backbone.generate = partial(backbone.generate, synced_gpus=mesh.size() > 1)  # type: ignore
    # What calls parts of the backbone, but not the backbone itself.
    called = ["generate", *(["get_input_embeddings"] if "prompts" in model.router.seen else [])]
    for name in called:
        register_fsdp_forward_method(backbone, name)
    tell_scales(model)


def tell_scales(model: nn.Module) -> None:
    """Let the parts of 4-bit weights tell their scales, which moving a sharded model forgets."""
    for module in model.modules():
        if state := getattr(module, "quant_state", None):
            module.weight.quant_state = state  # type: ignore[union-attr]


def _receive(unit: nn.Module, device: torch.device, received: set[nn.Module]) -> None:
    """Put the first process's parameters and buffers of a unit on the device of each.

    The scales of 4-bit weights become those of the modules, where bitsandbytes looks for them when
    a weight that was put together has none.

    Args:
        unit: A module.
        device: Where to.
        received: Modules that were put there already; those of the unit are added.
    """
    found = [
        (module, name, tensor)
        for module in unit.modules()
        if module not in received
        for name, tensor in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False),
        )
    ]
    received.update(unit.modules())
    told = of_first([(t.dtype, t.shape, getattr(t, "quant_state", None)) for *_, t in found])
    copies: dict[Tensor, Tensor] = {}  # tied parameters stay tied
    for (module, name, tensor), (dtype, shape, state) in zip(found, told, strict=True):
        if tensor not in copies:
            copies[tensor] = _tensor_of_first(tensor, dtype, shape, device)
        setattr(module, name, copies[tensor])
        if state is not None:
            state.to(device)
            module.quant_state = state


def _tensor_of_first(
    tensor: Tensor, dtype: torch.dtype, shape: torch.Size, device: torch.device
) -> Tensor:
    if is_first():
        value = tensor.detach().to(device).contiguous()
    else:
        value = torch.empty(shape, dtype=dtype, device=device)
    if value.numel():  # as bytes: not every backend sends every type
        dist.broadcast(value.view(-1).view(torch.uint8), src=0)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value


def _placement(n_processes: int, parameter: nn.Parameter) -> Shard | None:
    """Cut along the first axis that all processes get equal parts of.

    The first axis of skills is often shorter than there are processes.
    """
    sizes = enumerate(parameter.shape)
    return next((Shard(axis) for axis, size in sizes if size % n_processes == 0), None)
