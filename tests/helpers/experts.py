"""Small language models whose tokens choose experts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from helpers.backbones import fill
from mttl.moe.attach_experts import Place, attach_experts, expert_places
from mttl.moe.upcycle import upcycle
from mttl.routing import RoutingSlot, SharedRouter, TaskRouter
from mttl.routing.token.balance import Balance
from mttl.routing.token.token_router import TokenRouter
from mttl.routing.token.top_k import TopKRouter
from mttl.skills import AdapterInventory, Inventory, LoRAInventory, SkilledModel

N_EXPERTS = 4


def lora(place: Place, n_experts: int = N_EXPERTS) -> LoRAInventory:
    return LoRAInventory(place.in_features, place.out_features, n_experts, rank=2)


def adapter(place: Place, n_experts: int = N_EXPERTS) -> AdapterInventory:
    return AdapterInventory(place.in_features, place.out_features, n_experts, hidden_features=3)


def copies(place: Place, n_experts: int = N_EXPERTS) -> Inventory:
    assert place.block is not None
    return upcycle(place.block, n_experts)


def top2(place: Place, **settings: Any) -> TokenRouter:
    router = TopKRouter(place.in_features, N_EXPERTS, top_k=2, **settings)
    generator = torch.Generator().manual_seed(len(place.path))
    with torch.no_grad():  # far from a tie
        router.weight.copy_(torch.randn(router.weight.shape, generator=generator))
    return router


def balanced(place: Place) -> TokenRouter:
    return top2(place, balance=Balance(switch=0.1, z=0.01))


def token_model(
    backbone: nn.Module,
    *,
    experts: str = "lora",
    router: Any = top2,
    targets: Sequence[str] = ("mlp",),
    train_backbone: bool = False,
    filled: bool = True,
    n_tasks: int = 3,
    task_router: TaskRouter | None = None,
    every: int = 1,
    stacks: Sequence[str] | None = None,
    **settings: Any,
) -> SkilledModel:
    """Return a model with token experts on linear layers, or in place of blocks (copies)."""
    backbone.requires_grad_(train_backbone)
    slot = RoutingSlot()
    attach_experts(
        backbone,
        expert_places(backbone, targets, blocks=experts == "copies", every=every, stacks=stacks),
        {"lora": lora, "adapter": adapter, "copies": copies}[experts],
        router,
        slot=slot,
        replace=experts == "copies",
        **settings,
    )
    task_router = task_router or SharedRouter(0, n_tasks)
    model = SkilledModel(backbone, task_router, slot)
    if filled:
        for seed, layer in enumerate(model.token_layers().values()):
            fill(layer.experts, seed)
    return model.eval()


def padded_batch(n_examples: int = 3, length: int = 7, seed: int = 1) -> dict[str, torch.Tensor]:
    """Return a batch whose examples differ in length, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 40, (n_examples, length), generator=generator)
    labels = torch.randint(3, 40, (n_examples, length), generator=generator)
    lengths = torch.tensor([length - 2 * row for row in range(n_examples)])
    mask = torch.arange(length) < lengths[:, None]
    answers = torch.arange(length) < (length - lengths + 2)[:, None]
    return {
        "input_ids": ids.masked_fill(~mask, 0),
        "attention_mask": mask.long(),
        "labels": labels.masked_fill(~answers, -100),
    }
