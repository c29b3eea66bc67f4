"""A part of the backbone that has skills, wherever it sits: the base of all skilled layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.products import active_dtype
from mttl.routing.context import Routing, RoutingSlot
from mttl.skills.inventory import Inventory, Merged


class SkilledLayer(nn.Module):
    """A module of the backbone, its inventory, and its place in the routing.

    It takes the module's place; a class per attachment point says in ``forward`` what the
    skills read and where they act.

    Args:
        base: The module of the backbone.
        inventory: Its skills.
        slot: Where the routing of a forward pass is found; shared by all layers of a model.
        group: The routed group whose mixing weights this layer reads.

    Raises:
        ValueError: If the kind of skill cannot be mixed by task. ``forward`` raises one if its rows
            do not fit the examples of the routing, and RuntimeError if no routing is in use.
    """

    def __init__(
        self, base: nn.Module, inventory: Inventory, slot: RoutingSlot, group: int
    ) -> None:
        super().__init__()
        inventory.require_use("task")
        self.base = base
        self.inventory = inventory
        self.slot = slot
        self.group = group

    def merge(self, *, packed: bool = True) -> tuple[Routing, Merged]:
        """Return the routing of this pass, and the skills merged by it.

        Raises:
            ValueError: If a row has several examples, and skills cannot be ``packed``.
        """
        routing = self.slot.current
        if routing.segments and not packed:
            raise ValueError(
                "what stands in front of several examples cannot be separated in a packed "
                "sequence; leave data.packed_length out"
            )
        merged = routing.merged(id(self), lambda: self.inventory.merge(routing.weights[self.group]))
        if self.training:
            routing.add_losses(self.inventory.penalties())
        return routing, merged

    def changed(self, x: Tensor, y: Tensor, routing: Routing, merged: Merged) -> Tensor:
        """Return the output of the base with the skills of a routing.

        Args:
            x: Input of the skills: shape (R, …, I), rows of one example side by side.
            y: What the base made, shape (R, …, O).
            routing: As from `merge`.
            merged: As from `merge`.
        """
        if routing.segments:
            tokens = routing.tokens(x), routing.tokens(y)
            found = self.inventory.combine_tokens(*tokens, merged, routing.segments)
        else:
            found = self.inventory.combine(routing.examples(x), routing.examples(y), merged)
        return found.view(*y.shape[:-1], found.shape[-1])

    def extra_repr(self) -> str:
        return f"group={self.group}"


def hidden_states(given: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """Return what a part of the backbone reads: its first argument, or the one of that name."""
    return given[0] if given else named["hidden_states"]


def open_gates(
    x: Float[Tensor, "B L I"], weight: Float[Tensor, "B I"], bias: Float[Tensor, "B 1"]
) -> Float[Tensor, "B L 1"]:
    """Return how far the gate of each example is open at its tokens, from 0 to 1."""
    dtype = active_dtype(x)
    weight, bias = weight.to(dtype).unsqueeze(2), bias.to(dtype).unsqueeze(1)
    return torch.baddbmm(bias, x.to(dtype), weight).sigmoid()
