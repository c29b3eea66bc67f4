"""The layers of a backbone that route tokens, and what a model has to tell them."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from mttl.routing.context import RoutingSlot
from mttl.routing.task.task_router import TaskRouter
from mttl.routing.token.masks import TokenMasks
from mttl.routing.token.token_router import TokenRouter


def find_token_layers(backbone: nn.Module) -> dict[str, Any]:
    """Return the layers of a backbone that route tokens by their path in it."""
    return {
        name: module
        for name, module in backbone.named_modules()
        if isinstance(module._modules.get("router"), TokenRouter)  # not one that a block lends
    }


def check_token_layer(name: str, layer: Any, router: TaskRouter, slot: RoutingSlot) -> None:
    """Refuse a layer that reads another slot, or a prior that the model's router cannot give."""
    if layer.slot is not slot:
        raise ValueError(f"'{name}' reads another routing slot than the model's")
    if layer.group is None:
        return
    n_experts = layer.router.n_experts
    if (router.n_skills, router.n_heads) != (n_experts, 1):
        raise ValueError(
            f"'{name}' has {n_experts} experts; a task router that is their prior must have as "
            f"many skills and one head, not {router.n_skills} and {router.n_heads}"
        )


class NotedIds:
    """A hook that notes which ids a stack reads, also while text is generated.

    It is an object and no function, so that copies of a model keep one slot.
    """

    def __init__(self, slot: RoutingSlot, stacks: tuple[str, ...]) -> None:
        self.slot = slot
        self.stacks = stacks

    def __call__(self, module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        """Tell the routing what the stack is called with."""
        ids = inputs.get("input_ids", args[0] if args else None)
        if ids is not None and self.slot.in_use:
            for name in self.stacks:
                self.slot.current.read_ids(name, ids)


class FinishedRows:
    """A stopping criterion that notes which rows have ended while text is generated; stops nothing.

    A row that has ended goes on as padding until the last one has, beside the tokens of the others.
    (Beams never do: only those that have not ended are continued.)
    """

    def __init__(self, masks: TokenMasks, ends: int | list[int] | None, start: int) -> None:
        self.masks = masks
        self.ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        self.start = start

    def __call__(
        self, input_ids: Int[Tensor, "R L"], scores: Any, **settings: Any
    ) -> Bool[Tensor, "R"]:
        """Return that no row stops."""
        generated = input_ids[:, self.start :]
        ended = torch.isin(generated, generated.new_tensor(self.ends)).any(dim=1)
        self.masks.finished = ended
        return torch.zeros_like(ended)
