"""Experts shared out among processes: tokens travel to their experts and back.

::

    tokens of this process ── all-to-all ──> experts of each process ── all-to-all ──> outputs
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.routing.token.choice import Assignment
from mttl.routing.token.dispatch import combine, sort_by_expert
from mttl.skills.inventory import Inventory


class ParallelExperts(Inventory):
    """Keeps E / W of the experts in each of W processes and sends tokens to where theirs are.

    Every process calls it equally often, each with tokens of its own (or none), and gets what all
    experts together would have given. Routers stay whole in every process.

    Gradients of the experts are those of the mean of the processes' losses, as other parameters
    get them under `DistributedDataParallel`, which must leave the experts alone: list their names
    in the model's ``_ddp_params_and_buffers_to_ignore``.

    Raises:
        ValueError: If tokens cannot choose such experts, or the processes cannot have equally many.
        RuntimeError: If there is no process group.
    """

    uses = ("token",)

    def __init__(self, experts: Inventory) -> None:
        super().__init__(experts.in_features, experts.out_features, experts.n_skills)
        experts.require_use("token")
        if not dist.is_initialized():
            raise RuntimeError(
                "experts can be shared out among processes once torch.distributed is initialised; "
                "call init_process_group first"
            )
        n_processes, rank = dist.get_world_size(), dist.get_rank()
        if experts.n_skills % n_processes:
            raise ValueError(
                f"{experts.n_skills} experts cannot be shared out evenly among {n_processes} "
                "processes; let the latter divide the former"
            )
        n_local = experts.n_skills // n_processes
        self.reads, self.n_processes = experts.reads, n_processes
        self.local = expert_slice(experts, rank * n_local, (rank + 1) * n_local)

    def reset_parameters(self) -> None:
        """Re-initialise this process's experts."""
        self.local.reset_parameters()

    def gather(self) -> Inventory:
        """Return all experts in the first process; in the others, a copy of their own."""
        whole = self if dist.get_rank() == 0 else self.local
        return _with_others(self.local, gather_first, whole.n_skills)

    def dispatch(self, x: Float[Tensor, "N I"], assignment: Assignment) -> Float[Tensor, "N O"]:
        """Return, for each of this process's tokens, the sum over its pairs."""
        work = sort_by_expert(assignment)
        counts = work.counts.view(self.n_processes, -1)  # by owner, by the owner's experts
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts.contiguous())
        sent, received = counts.sum(1).tolist(), coming.sum(1).tolist()
        there = _Exchange.apply(x[work.tokens], sent, received, self.n_processes)
        y = self.local.dispatch(there, _visitors(coming, there))  # type: ignore[arg-type]
        back = _Exchange.apply(y, received, sent, 1 / self.n_processes)
        return combine(back, work, len(x))  # type: ignore[arg-type]


def expert_slice(experts: Inventory, start: int, stop: int) -> Inventory:
    """Return a copy of some of the experts."""
    return _with_others(experts, lambda tensor: tensor[start:stop].clone(), stop - start)


def gather_first(tensor: Tensor) -> Tensor:
    """Return what the processes hold of a tensor to the first one, and their own to the others."""
    # NCCL sends from GPUs only, and between two loops of a trainer a model lies on the CPU.
    sent = tensor.detach().contiguous()
    sent = sent.cuda() if dist.get_backend() == "nccl" else sent
    first = dist.get_rank() == 0
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size())] if first else None
    dist.gather(sent, parts)
    return tensor if parts is None else torch.cat(parts).to(tensor.device)


def _with_others(
    experts: Inventory, change: Callable[[Tensor], Tensor], n_experts: int
) -> Inventory:
    """Return a copy whose parameters and buffers are others, one after another."""
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


def _visitors(coming: Int[Tensor, "W e"], rows: Float[Tensor, "P I"]) -> Assignment:
    """Assign rows, which lie by process and then by expert, to the experts of this process."""
    n_local = coming.shape[1]
    experts = torch.arange(n_local, device=rows.device).repeat(len(coming))
    return Assignment(
        tokens=torch.arange(len(rows), device=rows.device),
        experts=experts.repeat_interleave(coming.flatten()),
        weights=torch.ones(len(rows), device=rows.device),  # gates wait at home
        probabilities=torch.zeros(len(rows), n_local, device=rows.device),
    )


class _Exchange(torch.autograd.Function):
    """Sends rows to the other processes; gradients come back the same way, times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], factor: float) -> Tensor:
        ctx.settings = sent, received, factor
        return _exchange(x, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sent, received, factor = ctx.settings
        return factor * _exchange(grad, received, sent), None, None, None


def _exchange(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    y = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(y, x.contiguous(), received, sent)
    return y
