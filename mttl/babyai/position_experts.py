"""Mixture-of-experts layers beside the FiLM blocks of a policy; each grid position is a token."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.assembly.build_moe import make_experts, make_router
from mttl.config.moe_schema import AnyMoE
from mttl.moe.layer import MoELayer, SharedExpert
from mttl.routing.context import Routing, RoutingSlot
from mttl.routing.token.choice import Tokens
from mttl.skills.composed.composed_model import ComposedModel


class ViewRouting(Routing):
    """The routing of any number of views, each of which is an example."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(0, dtype=torch.long), torch.zeros(0, 0, 1, 0))

    def layer_tokens(
        self, x: Float[Tensor, "F L C"], stack: str, group: int | None, *, ids: bool
    ) -> Tokens:
        """Return all positions of all views as tokens."""
        views = torch.arange(len(x), device=x.device).repeat_interleave(x.shape[1])
        return Tokens(x.flatten(0, 1), examples=views)


class ViewSlot(RoutingSlot):
    """A slot for policies, which also play without a routing; its records are then discarded."""

    @property
    def current(self) -> Routing:
        """The innermost routing in use, or a new one."""
        return super().current if self.in_use else ViewRouting()


class PositionExperts(MoELayer):
    """A `MoELayer` for the positions of feature maps; a policy adds it to a FiLM block."""

    def forward(self, x: Float[Tensor, "F C 7 7"]) -> Float[Tensor, "F C 7 7"]:
        return super().forward(x.flatten(2).mT).mT.reshape(x.shape)


def add_experts(model: ComposedModel, moe: AnyMoE) -> None:
    """Add experts beside every FiLM block to a model of policies, in place.

    All levels share them: the inventory, which is made before, does not change them.

    Raises:
        ValueError: If experts need a base layer, or a setting does not fit.
    """
    slot = ViewSlot()
    base: Any = model.base
    for number, film in enumerate(base.films):
        size = film.convolution_1.in_channels
        layer = PositionExperts(
            make_experts(moe, size, size, moe.n_experts),
            make_router(moe, size, moe.n_experts),
            slot,
            shared=SharedExpert(make_experts(moe, size, size, 1)) if moe.shared_expert else None,
            name=f"experts.{number}",
            capacity_factor=moe.capacity_factor,
            eval_capacity_factor=moe.eval_capacity_factor,
        )
        base.experts.append(layer)
    model.over_tasks = "loop"  # numbers of tokens per expert depend on data, unlike in `vmap`
