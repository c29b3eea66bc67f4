"""Skilled layers: modules of a backbone together with their inventories of skills."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype
from mttl.routing.context import ConstantSlot, Routing, RoutingSlot
from mttl.skills.inventory import Inventory, Merged

Slot: TypeAlias = RoutingSlot | ConstantSlot


class SkilledLayer(nn.Module):
    """A replacement of a backbone's module, the base, that adds an inventory of skills.

    Each attachment point has a subclass, whose ``forward`` applies the skills. All layers of a
    model share the slot; ``group`` is the routed group whose mixing weights the layer reads. The
    base may be a layer with skills of another slot; with a constant slot, these are always in
    evaluation mode.

    Raises:
        ValueError: If the kind of skill cannot be mixed by task. ``forward`` raises it if its rows
            do not fit the examples of the routing, and RuntimeError if no routing is in use.
    """

    def __init__(self, base: nn.Module, inventory: Inventory, slot: Slot, group: int) -> None:
        super().__init__()
        inventory.require_use("task")
        self.base, self.inventory, self.slot, self.group = base, inventory, slot, group

    @property
    def weight(self) -> Tensor:
        """The base layer's weight, whose dtype backbones read."""
        return self.base.weight  # type: ignore[return-value]

    def merge(self) -> tuple[Routing, Merged]:
        """Return the routing of this pass, and the skills merged by it."""
        routing = self.slot.current
        merged = routing.merged(id(self), lambda: self.inventory.merge(routing.weights[self.group]))
        if self.inventory.training:
            routing.add_losses(self.inventory.penalties())
        return routing, merged

    def changed(self, x: Tensor, y: Tensor, routing: Routing, merged: Merged) -> Tensor:
        """Return the output with skills from input and output of the base.

        ``x`` has the shape (R, …, I) and ``y`` (R, …, O); rows of an example are adjacent.
        """
        if routing.segments:
            tokens = routing.tokens(x), routing.tokens(y)
            found = self.inventory.combine_tokens(*tokens, merged, routing.segments)
        else:
            found = self.inventory.combine(routing.examples(x), routing.examples(y), merged)
        return found.view(*y.shape[:-1], found.shape[-1])

    def train(self, mode: bool = True) -> "SkilledLayer":
        super().train(mode)
        self.inventory.train(mode and not isinstance(self.slot, ConstantSlot))
        return self

    def extra_repr(self) -> str:
        return f"group={self.group}"


def innermost(module: nn.Module) -> nn.Module:
    """Return the backbone's module inside all layers with skills."""
    while isinstance(module, SkilledLayer):
        module = module.base
    return module


def layers_of(backbone: nn.Module, slot: Slot) -> dict[str, SkilledLayer]:
    """Return the skilled layers that read a slot by path, as if there were no others."""
    skilled = {
        path: module
        for path, module in backbone.named_modules()
        if isinstance(module, SkilledLayer)
    }
    others = [f"{path}." for path, layer in skilled.items() if layer.slot is not slot]
    return {
        without_layers(path, others): layer for path, layer in skilled.items() if layer.slot is slot
    }


def without_layers(path: str, layers: Sequence[str]) -> str:
    """Return a path as if some layers around it, given as ``"<path>."``, did not exist."""
    path += "."
    for outer in sorted(layers, key=len, reverse=True):  # innermost first
        if path.startswith(f"{outer}base."):
            path = outer + path.removeprefix(f"{outer}base.")
    # A layer like BART's, whose block is a module only for skills.
    return path.replace(".fc1.fc1.", ".fc1.").replace(".fc1.fc2.", ".fc2.").removesuffix(".")


def hidden_states(given: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """Return the hidden states among a module's arguments: the first one, or the named one."""
    return given[0] if given else named["hidden_states"]


def open_gates(
    x: Float[Tensor, "B L I"], weight: Float[Tensor, "B I"], bias: Float[Tensor, "B 1"]
) -> Float[Tensor, "B L 1"]:
    """Return the gate of each example at its tokens, from 0 (shut) to 1 (open)."""
    dtype = active_dtype(x)
    weight, bias = weight.to(dtype).unsqueeze(2), bias.to(dtype).unsqueeze(1)
    return torch.baddbmm(bias, x.to(dtype), weight).sigmoid()


class SkilledLinear(SkilledLayer):
    """A linear layer with skills; ValueError if skills read a weight of another kind of layer."""

    def __init__(self, base: nn.Module, inventory: Inventory, slot: Slot, group: int) -> None:
        super().__init__(base, inventory, slot, group)
        if inventory.reads_weight and not isinstance(base, nn.Linear):
            raise ValueError(
                f"{type(inventory).__name__} needs an nn.Linear, not {type(base).__name__}; choose "
                "other targets, or another kind of skill (lora)"
            )

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.base, "bias", None)

    def forward(self, x: Float[Tensor, "R *positions I"]) -> Float[Tensor, "R *positions O"]:
        routing, merged = self.merge()
        if routing.segments:
            tokens = routing.tokens(x)
            y = self.inventory.combine_segments(tokens, self.base, merged, routing.segments)
            return y.view(*x.shape[:-1], y.shape[-1])
        examples = routing.examples(x)
        fused = self.inventory.reads_weight or self.inventory.changes_input
        # Layers of torchao are `nn.Linear`, too, and differ in the class of the weight.
        plain = type(self.base) is nn.Linear and type(self.base.weight) in (nn.Parameter, Tensor)
        if fused or plain:
            y = self.inventory.combine_linear(examples, self.base, merged)  # type: ignore[arg-type]
        else:
            y = self.inventory.combine(examples, self.base(examples), merged)
        return y.view(*x.shape[:-1], y.shape[-1])


RMS_NORMS = ("T5LayerNorm", "TransformersLayerNorm", "RMSNorm")  # ends of names of classes


class SkilledNorm(SkilledLinear):
    """A norm with skills that change its gain and bias."""

    def forward(self, x: Float[Tensor, "R *positions D"]) -> Float[Tensor, "R *positions D"]:
        return self.changed(normalised(innermost(self.base), x), self.base(x), *self.merge())


def norm_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return input and output features, and whether there is a bias, of norms with gains, by path.

    Norms are layer norms of PyTorch, and root-mean-square norms of PyTorch and transformers.
    """
    return {
        path: (len(gain), len(gain), int(getattr(module, "bias", None) is not None))
        for path, module in backbone.named_modules()
        if (isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(RMS_NORMS))
        and isinstance(gain := getattr(module, "weight", None), nn.Parameter)
        and gain.ndim == 1
    }


def normalised(norm: nn.Module, x: Float[Tensor, "*rest D"]) -> Float[Tensor, "*rest D"]:
    """Return the normalised input before the gain, in at least single precision."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if isinstance(norm, nn.LayerNorm):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=norm.eps)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return nn.functional.rms_norm(x, x.shape[-1:], eps=eps)


class SkilledBlock(SkilledLayer):
    """An attention or feed-forward block with skills.

    Skills read the block's hidden states, its first argument, or its first output. Other arguments
    and outputs (masks, caches, attention) pass unchanged, and attributes are those of the block.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        merged = self.merge()
        outputs = self.base(*args, **kwargs)
        y = outputs[0] if isinstance(outputs, tuple) else outputs
        changed = self.changed(hidden_states(args, kwargs), y, *merged)
        return (changed, *outputs[1:]) if isinstance(outputs, tuple) else changed

    def __getattr__(self, name: str) -> Any:
        """Return attributes of the block, which backbones read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)
