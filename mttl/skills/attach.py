"""Put inventories of skills on parts of a backbone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import nn

from mttl.aggregation.packed_weights import is_foreign
from mttl.routing.context import RoutingSlot
from mttl.skills.inventory import Inventory
from mttl.skills.sites import SITES
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.targets import GRANULARITIES, block_paths, choose_layers, group_name, summarise


@dataclass(frozen=True)
class Attached:
    """One row of the report: a layer that has skills now."""

    path: str
    in_features: int
    out_features: int
    group: str
    n_parameters: int


@dataclass(frozen=True)
class Attachment:
    """What `attach_skills` did.

    Attributes:
        layers: The layers with skills, in the backbone's order.
        groups: Names of the routed groups; a layer's ``group`` is an index into them.
    """

    layers: tuple[Attached, ...]
    groups: tuple[str, ...]

    def summary(self) -> list[tuple[str, int, str, int]]:
        """Return one row per kind of layer: pattern, count, shape, skill parameters."""
        return summarise(
            (layer.path, layer.in_features, layer.out_features, layer.n_parameters)
            for layer in self.layers
        )


def attach_skills(
    backbone: nn.Module,
    make_inventory: Callable[..., Inventory],
    *,
    targets: Sequence[str],
    slot: RoutingSlot,
    granularity: str = "linear",
    site: str = "linear",
) -> Attachment:
    """Replace the targeted layers by skilled ones, in place; base weights are not touched.

    Linear layers are those of PyTorch, whatever their weights are kept in, GPT-2's, and layers of
    other libraries that keep weights as whole numbers and tell their features.

    Args:
        backbone: Any model.
        make_inventory: Makes the skills of a layer from its ``in_features`` and ``out_features``,
            and what else the site tells.
        targets: Which layers: ``"attention"``, ``"mlp"``, ``"all"`` (every linear layer inside a
            block), or patterns with ``*`` and ``?`` that match the end of a layer's dotted path
            (``"q_proj"``, ``"decoder.*.wo"``).
        slot: Where the layers find the routing of a forward pass.
        granularity: Which layers share a routing row: all of the ``"model"``, of a ``"stack"``
            (encoder, decoder), of a ``"block"``, of a ``"layer"`` (attention, feed-forward), or
            none: each ``"linear"`` has its own.
        site: What the inventories are made for: their class's ``site``.

    Returns:
        The layers and the groups.

    Raises:
        ValueError: If a target or the granularity is unknown, or a target matches no layer; the
            message lists near names. If a layer cannot hold the inventory, the message names it.
            If the backbone has skills already. It is then left as it was.
    """
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity ('{granularity}') must be one of {', '.join(GRANULARITIES)}")
    if any(isinstance(module, SkilledLayer) for module in backbone.modules()):
        raise ValueError("the backbone has skills already; attach all of them in one call")
    where = SITES[site]
    # A layer may stand at several paths (tied weights): it gets one inventory, under the first.
    places = where.find(backbone)
    unknown = {
        path: type(module).__name__
        for path, module in backbone.named_modules()
        if path not in places and is_foreign(module)
    }
    blocks = block_paths(backbone)
    groups: dict[str, int] = {}
    layers = []
    skilled: dict[nn.Module, SkilledLayer] = {}
    chosen = choose_layers(*(places, targets, blocks, unknown), words=where.words, noun=where.noun)
    for path in chosen:
        in_features, out_features, *more = places[path]
        name = group_name(path, granularity, blocks)
        group = groups.setdefault(name, len(groups))
        base = backbone.get_submodule(path)
        try:
            inventory = make_inventory(in_features, out_features, *more)
            skilled[base] = where.layer(base, inventory, slot, group)
        except ValueError as error:
            raise ValueError(f"{error} of '{path}'") from error
        inventory.to(next(chain(base.parameters(), base.buffers())).device)
        n_parameters = sum(parameter.numel() for parameter in inventory.parameters())
        layers.append(Attached(path, in_features, out_features, name, n_parameters))
    # Only now is the backbone touched: an error above leaves it as it was.
    for parent in list(backbone.modules()):
        for child, module in list(parent._modules.items()):
            if module in skilled:
                setattr(parent, child, skilled[module])
    if where.prepare is not None:
        where.prepare(backbone)
    return Attachment(tuple(layers), tuple(groups))
