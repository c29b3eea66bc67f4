"""A part of the backbone that has skills, wherever it sits: the base of all skilled layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

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
        ValueError: If the kind of skill cannot be mixed by task.
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

    def merge(self) -> tuple[Routing, Merged]:
        """Return the routing of this pass, and the skills merged by it.

        Raises:
            RuntimeError: If no routing is in use.
        """
        routing = self.slot.current
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

        Raises:
            ValueError: If the rows do not fit the examples of the routing.
        """
        if routing.segments:
            tokens = routing.tokens(x), routing.tokens(y)
            found = self.inventory.combine_tokens(*tokens, merged, routing.segments)
        else:
            found = self.inventory.combine(routing.examples(x), routing.examples(y), merged)
        return found.view(*y.shape[:-1], found.shape[-1])

    def extra_repr(self) -> str:
        """Name the group in the module's printed form."""
        return f"group={self.group}"


def hidden_states(given: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """Return what a part of the backbone reads: its first argument, or the one of that name."""
    return given[0] if given else named["hidden_states"]
