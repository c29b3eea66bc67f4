"""Expert parallelism: each process has a part of the experts, and tokens are exchanged.

::

    tokens of this process ── all-to-all ──> experts of each process ── all-to-all ──> outputs

Checkpoints are gathered in the first process and contain all experts under their usual names and
shapes; when one is read, every process takes its part. So the number of processes may change.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from mttl.moe.layer import MoELayer
from mttl.routing.token.choice import Assignment, combine, sort_by_expert
from mttl.skills.inventory import Inventory


class ParallelExperts(Inventory):
    """Experts of which each of W processes has E / W, and to which it sends its tokens.

    Every process must call it equally often, with its tokens (or none); the output equals that of
    all experts in one process. Routers are replicated.

    Gradients of the experts are those of the mean of the processes' losses, as under
    `DistributedDataParallel`, which must ignore the experts.

    Raises:
        ValueError: If their number is not divisible by the number of processes, or there is no
            process group.
    """

    uses = ("token",)

    def __init__(self, experts: Inventory) -> None:
        super().__init__(experts.in_features, experts.out_features, experts.n_skills)
        n_processes, rank = dist.get_world_size(), dist.get_rank()
        if experts.n_skills % n_processes:
            raise ValueError(
                f"{experts.n_skills} experts cannot be divided among {n_processes} processes"
            )
        n_local = experts.n_skills // n_processes
        self.reads, self.n_processes = experts.reads, n_processes
        self.local = expert_slice(experts, rank * n_local, (rank + 1) * n_local)

    def reset_parameters(self) -> None:
        self.local.reset_parameters()

    def gather(self) -> Inventory:
        """Return all experts in the first process, and a copy of the local ones in others."""
        whole = self if dist.get_rank() == 0 else self.local
        return _with_others(self.local, gather_first, whole.n_skills)

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        work = sort_by_expert(assignment)
        counts = work.counts.view(self.n_processes, -1)  # by owner, by the owner's experts
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts.contiguous())
        sent, received = counts.sum(1).tolist(), coming.sum(1).tolist()
        there = _exchange(x[work.tokens], sent, received, self.n_processes)
        # Rows are ordered by process, then by expert; gates stay in the process of the token.
        local = torch.arange(counts.shape[1], device=x.device).repeat(self.n_processes)
        visitors = Assignment(
            tokens=torch.arange(len(there), device=x.device),
            experts=local.repeat_interleave(coming.flatten()),
            weights=torch.ones(len(there), device=x.device),
            probabilities=torch.zeros(len(there), counts.shape[1], device=x.device),
        )
        y = self.local.dispatch(there, visitors)
        back = _exchange(y, received, sent, 1 / self.n_processes)
        return combine(back, work, len(x))


def expert_slice(experts: Inventory, start: int, stop: int) -> Inventory:
    """Return a copy of some of the experts."""
    return _with_others(experts, lambda tensor: tensor[start:stop].clone(), stop - start)


def gather_first(tensor: Tensor) -> Tensor:
    """Return the concatenated parts of all processes in the first one, and the part in others."""
    # NCCL needs GPU tensors, and the model is on the CPU between two loops of a trainer.
    sent = tensor.detach().contiguous()
    sent = sent.cuda() if dist.get_backend() == "nccl" else sent
    first = dist.get_rank() == 0
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size())] if first else None
    dist.gather(sent, parts)
    return tensor if parts is None else torch.cat(parts).to(tensor.device)


def _with_others(
    experts: Inventory, change: Callable[[Tensor], Tensor], n_experts: int
) -> Inventory:
    """Return a copy with ``change`` applied to its parameters and buffers."""
    part = copy.deepcopy(experts)
    for module in part.modules():
        for name, parameter in module.named_parameters(recurse=False):
            changed = nn.Parameter(change(parameter.detach()), parameter.requires_grad)
            setattr(module, name, changed)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, change(buffer))
        if isinstance(module, Inventory):
            module.n_skills = n_experts
    return part


def _exchange(x: Tensor, sent: list[int], received: list[int], factor: float) -> Tensor:
    """Exchange rows between processes; gradients are exchanged back and scaled by a factor."""
    from torch.distributed.nn.functional import all_to_all_single  # some builds do not have it

    y = x.new_empty(sum(received), *x.shape[1:])
    y = all_to_all_single(y, x.contiguous(), received, sent)
    if y.requires_grad:
        y.register_hook(lambda grad: factor * grad)
    return y


def check_shardable(experts: Inventory) -> None:
    """Raise ValueError unless the first axis of all tensors is that of the experts."""
    for name, tensor in experts.state_dict().items():
        if tensor.ndim == 0 or len(tensor) != experts.n_skills:
            raise ValueError(
                f"'{name}' of {type(experts).__name__} has the shape {tuple(tensor.shape)}; expert "
                f"parallelism needs a first axis of {experts.n_skills} experts"
            )


def shard_experts(model: nn.Module) -> None:
    """Keep this process's part of the experts of every layer, in place.

    All processes must call it together, with equal models.
    """
    for layer in _layers(model):
        if not isinstance(layer.experts, ParallelExperts):
            layer.experts = ParallelExperts(layer.experts).train(layer.experts.training)
    model._ddp_params_and_buffers_to_ignore = list(shared_names(model))  # type: ignore[assignment]


def make_whole(model: nn.Module) -> None:
    """Restore all experts in the first process, in place; others keep their parts."""
    for layer in _layers(model):
        if isinstance(layer.experts, ParallelExperts):
            whole = layer.experts.gather()
            if dist.get_rank() == 0:
                layer.experts = whole.train(layer.experts.training)


def shared_names(model: nn.Module) -> dict[str, str]:
    """Return the names of the parallel experts' tensors, and their names without parallelism."""
    return {
        f"{path}.local.{name}": f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, ParallelExperts)
        for name in module.local.state_dict()
    }


def shared_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the parallel experts, which differ between processes."""
    return [
        parameter
        for module in model.modules()
        if isinstance(module, ParallelExperts)
        for parameter in module.local.parameters()
    ]


def gather_checkpoint(
    model: nn.Module, checkpoint: dict[str, Any], parameters: Sequence[nn.Parameter]
) -> None:
    """Change a checkpoint of one process into one of all experts, in the first process."""
    _change(model, checkpoint, parameters, shared_names(model), lambda v: gather_first(v).cpu())


def shard_checkpoint(
    model: nn.Module, checkpoint: dict[str, Any], parameters: Sequence[nn.Parameter]
) -> None:
    """Reduce a checkpoint of all experts to this process's part."""
    own = {whole: name for name, whole in shared_names(model).items()}
    count, rank = (dist.get_world_size(), dist.get_rank()) if own else (1, 0)
    _change(model, checkpoint, parameters, own, lambda v: v.chunk(count)[rank].clone())


def clip_gradients(parameters: Sequence[nn.Parameter], model: nn.Module, largest: float) -> Tensor:
    """Clip gradients by their norm over all processes, and return the norm before."""
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
    """Change names, values and optimizer moments of parallel experts in a checkpoint."""
    if not names:
        return
    checkpoint["state_dict"] = {
        names.get(name, name): change(value) if name in names else value
        for name, value in checkpoint["state_dict"].items()
    }
    own = {id(parameter) for parameter in shared_parameters(model)}
    for optimizer in checkpoint.get("optimizer_states", ()):
        # Copies, since the optimizer still uses its dictionaries.
        optimizer["state"] = {number: {**known} for number, known in optimizer["state"].items()}
        for number, parameter in enumerate(parameters):
            moments = optimizer["state"].get(number, {}) if id(parameter) in own else {}
            for name, value in [*moments.items()]:
                # A moment differs from the parameter only along the first axis.
                if value.ndim and value.shape[1:] == parameter.shape[1:]:
                    moments[name] = change(value)
