"""A linear layer of the backbone together with its skills."""

from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.packed_weights import is_plain_linear
from mttl.routing.context import RoutingSlot
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_layer import SkilledLayer


class SkilledLinear(SkilledLayer):
    """The base layer, any module that maps I features to O, its inventory and its routing.

    Raises:
        ValueError: As for `SkilledLayer`, and if skills read the weight of a layer that has none.
    """

    def __init__(
        self, base: nn.Module, inventory: Inventory, slot: RoutingSlot, group: int
    ) -> None:
        super().__init__(base, inventory, slot, group)
        if inventory.reads_weight and not isinstance(base, nn.Linear):
            raise ValueError(
                f"{type(inventory).__name__} reads the weight of an nn.Linear, and cannot be on a "
                f"{type(base).__name__}; choose targets that are, or a kind that reads none, as "
                "lora, dense, sparse or head_mask"
            )

    @property
    def weight(self) -> Tensor:
        """The base layer's weight: backbones look at its dtype."""
        return self.base.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.base, "bias", None)

    def forward(self, x: Float[Tensor, "R *positions I"]) -> Float[Tensor, "R *positions O"]:
        """Return the layer's output with the skills of the current routing.

        The rows of one example are neighbours.
        """
        routing, merged = self.merge()
        if routing.segments:
            tokens = routing.tokens(x)
            y = self.inventory.combine_segments(tokens, self.base, merged, routing.segments)
            return y.view(*x.shape[:-1], y.shape[-1])
        examples = routing.examples(x)
        fused = self.inventory.reads_weight or self.inventory.changes_input
        if fused or is_plain_linear(self.base):
            y = self.inventory.combine_linear(examples, self.base, merged)  # type: ignore[arg-type]
        else:
            y = self.inventory.combine(examples, self.base(examples), merged)
        return y.view(*x.shape[:-1], y.shape[-1])
