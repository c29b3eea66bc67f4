"""What two processes that share experts compute, and how they compute it."""

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from mttl.moe import FeedForwardExperts, ParallelExperts
from mttl.routing import Balance, Tokens, TopKRouter
from mttl.skills import Inventory, LoRAInventory

I, E, WORLD = 6, 4, 2  # noqa: E741
# Tokens of each process; in the second case one has none.
CASES = {"uneven": (7, 4), "one has none": (0, 5)}
KINDS = ("feed_forward", "lora")
LOSSES = {"switch": 1.0, "gshard": 1.0, "importance": 1.0, "z": 1.0, "entropy": 1.0}


def make(kind: str) -> tuple[Inventory, TopKRouter]:
    torch.manual_seed(1)
    if kind == "lora":
        experts: Inventory = LoRAInventory(I, I, E, rank=3)
    else:
        experts = FeedForwardExperts(I, 5, I, E, gated=True, activation="silu", bias=True)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    balance = Balance(**LOSSES, global_statistics=True)
    return experts, TopKRouter(I, E, init_scale=3.0, balance=balance)


def tokens(case: str, rank: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of a process, and what its loss multiplies their outputs with."""
    generator = torch.Generator().manual_seed(10 + rank)
    n = CASES[case][rank]
    return torch.randn(n, I, generator=generator), torch.randn(n, I, generator=generator)


def step(experts: Inventory, router: TopKRouter, x: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Return the output of a forward pass, what it owes, and the gradient of the input."""
    x = x.requires_grad_()
    assignment = router(Tokens(x))
    y = experts.dispatch(x, assignment)
    owed = torch.stack([*assignment.losses.values()]).sum()
    ((y * target).sum() + owed).backward()
    return {"y": y.detach(), "owed": owed.detach(), "x": x.grad}


def work(rank: int, folder: Path) -> None:
    """Be one of the processes; leave the results in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD)
    results = {}
    for kind in KINDS:
        for case in CASES:
            whole, router = make(kind)
            experts = ParallelExperts(whole)
            found = step(experts, router, *tokens(case, rank))
            dist.all_reduce(router.weight.grad)
            found["router"] = router.weight.grad / WORLD  # as under DDP
            for name, parameter in experts.local.named_parameters():
                found[f"experts.{name}"] = parameter.grad
            results |= {f"{kind}/{case}/{name}": value for name, value in found.items()}
    try:
        ParallelExperts(LoRAInventory(I, I, 3))
    except ValueError as error:
        (folder / f"refused{rank}.txt").write_text(str(error))
    save_file(
        {name: value.clone().contiguous() for name, value in results.items()},
        folder / f"{rank}.safetensors",
    )
    dist.destroy_process_group()


def read(folder: Path) -> list[dict[str, Tensor]]:
    return [load_file(folder / f"{rank}.safetensors") for rank in range(WORLD)]
