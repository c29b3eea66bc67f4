"""The experts of a whole model shared out among processes; their files are those of one process.

A checkpoint is gathered into the first process, which writes it with the names and shapes that all
experts have together, and every process takes its share of one that is read: so it does not matter
how many there were.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from mttl.moe.layer import MoELayer
from mttl.moe.parallel import ParallelExperts, gather_first
from mttl.skills.inventory import Inventory


def check_shardable(experts: Inventory) -> None:
    """Refuse experts that cannot be taken apart.

    Raises:
        ValueError: If a tensor has not one entry per expert along its first axis.
    """
    for name, tensor in experts.state_dict().items():
        if tensor.ndim == 0 or len(tensor) != experts.n_skills:
            raise ValueError(
                f"'{name}' of {type(experts).__name__} has the shape {tuple(tensor.shape)}, and "
                f"experts are shared out along a first axis of {experts.n_skills} of them"
            )


def shard_experts(model: nn.Module) -> None:
    """Let this process keep its share of the experts of every layer, in place.

    Args:
        model: Equal in all processes, which call this together. Data-parallel training must leave
            the experts alone: its ``_ddp_params_and_buffers_to_ignore`` names them.
    """
    for layer in _layers(model):
        if not isinstance(layer.experts, ParallelExperts):
            layer.experts = ParallelExperts(layer.experts).train(layer.experts.training)
    model._ddp_params_and_buffers_to_ignore = list(shared_names(model))  # type: ignore[assignment]


def make_whole(model: nn.Module) -> None:
    """Give the first process all experts again, in place; the others keep their shares."""
    for layer in _layers(model):
        if isinstance(layer.experts, ParallelExperts):
            whole = layer.experts.gather()
            if dist.get_rank() == 0:
                layer.experts = whole.train(layer.experts.training)


def shared_names(model: nn.Module) -> dict[str, str]:
    """Return the names of what differs between processes, and the names where nothing is shared."""
    return {
        f"{path}.local.{name}": f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, ParallelExperts)
        for name in module.local.state_dict()
    }


def shared_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that each process has of its own; none where nothing is shared."""
    return [
        parameter
        for module in model.modules()
        if isinstance(module, ParallelExperts)
        for parameter in module.local.parameters()
    ]


def gather_checkpoint(
    model: nn.Module, checkpoint: dict[str, Any], parameters: Sequence[nn.Parameter]
) -> None:
    """Turn a checkpoint of one process's share into that of all experts, in the first process."""
    _change(model, checkpoint, parameters, shared_names(model), lambda v: gather_first(v).cpu())


def shard_checkpoint(
    model: nn.Module, checkpoint: dict[str, Any], parameters: Sequence[nn.Parameter]
) -> None:
    """Leave of a checkpoint of all experts this process's share."""
    own = {whole: name for name, whole in shared_names(model).items()}
    count, rank = (dist.get_world_size(), dist.get_rank()) if own else (1, 0)
    _change(model, checkpoint, parameters, own, lambda v: v.chunk(count)[rank].clone())


def clip_gradients(parameters: Sequence[nn.Parameter], model: nn.Module, largest: float) -> Tensor:
    """Scale gradients to a norm over all processes; return the norm before."""
    own = {id(parameter) for parameter in shared_parameters(model)}
    graded = [parameter for parameter in parameters if parameter.grad is not None]
    parts = [[p.grad for p in graded if (id(p) in own) is shared] for shared in (True, False)]
    mine, common = (nn.utils.get_total_norm(part) ** 2 for part in parts)  # type: ignore[arg-type]
    device = graded[0].device
    mine, common = mine.to(device), common.to(device)
    dist.all_reduce(mine)
    norm = (mine + common).sqrt()
    nn.utils.clip_grads_with_norm_(graded, largest, norm)
    return norm


def _layers(model: nn.Module) -> list[MoELayer]:
    return [module for module in model.modules() if isinstance(module, MoELayer)]


def _change(
    model: nn.Module,
    checkpoint: dict[str, Any],
    parameters: Sequence[nn.Parameter],
    names: Mapping[str, str],
    change: Callable[[Tensor], Tensor],
) -> None:
    """Change what a checkpoint holds of shared experts: names, values, and their moments."""
    if not names:
        return
    checkpoint["state_dict"] = {
        names.get(name, name): change(value) if name in names else value
        for name, value in checkpoint["state_dict"].items()
    }
    own = {id(parameter) for parameter in shared_parameters(model)}
    for optimizer in checkpoint.get("optimizer_states", ()):
        # Copies: the optimizer goes on with the dictionaries that it has given away.
        optimizer["state"] = {number: {**known} for number, known in optimizer["state"].items()}
        for number, parameter in enumerate(parameters):
            moments = optimizer["state"].get(number, {}) if id(parameter) in own else {}
            for name, value in [*moments.items()]:
                # Whole or shared, it differs from the parameter along the first axis only.
                if value.ndim and value.shape[1:] == parameter.shape[1:]:
                    moments[name] = change(value)
