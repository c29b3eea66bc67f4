"""An attention or feed-forward block of the backbone together with its skills."""

from typing import Any

from mttl.skills.skilled_layer import SkilledLayer, hidden_states


class SkilledBlock(SkilledLayer):
    """The base block, its inventory, and its place in the routing.

    Skills read the hidden states that the block reads, its first argument, or what it makes of
    them, its first output. Whatever else goes in or comes out (masks, caches, attention) passes,
    and the block's attributes are found here too.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        merged = self.merge()
        outputs = self.base(*args, **kwargs)
        y = outputs[0] if isinstance(outputs, tuple) else outputs
        changed = self.changed(hidden_states(args, kwargs), y, *merged)
        return (changed, *outputs[1:]) if isinstance(outputs, tuple) else changed

    def __getattr__(self, name: str) -> Any:
        """Find what the layer itself does not have in its block: backbones look at it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)
