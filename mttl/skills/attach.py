"""Put inventories of skills on parts of a backbone."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from torch import nn

from mttl.aggregation.packed_weights import is_foreign
from mttl.io.errors import require_one_of
from mttl.routing.context import RoutingSlot
from mttl.skills.attachment_points import ATTACHMENT_POINTS
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_layer import SkilledLayer, SkilledLinear
from mttl.skills.targets import (
    GRANULARITIES,
    block_paths,
    choose_layers,
    group_name,
    linear_features,
)


@dataclass(frozen=True)
class Placement:
    """One kind of skill, and where it goes: arguments of `attach_skills`."""

    make_inventory: Callable[..., Inventory]
    targets: Sequence[str]
    attachment_point: str = "linear"


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
    """What `attach_skills` or `mttl.moe.attach_experts` did.

    Attributes:
        layers: The layers with skills, in the backbone's order.
        groups: Names of the routed groups; a layer's ``group`` is an index into them.
        coverage: Numbers of linear layers in ``"attention"`` and ``"mlp"``: with skills, and all.
    """

    layers: tuple[Attached, ...]
    groups: tuple[str, ...]
    coverage: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def summary(self) -> list[tuple[str, int, str, int]]:
        """Return one row per kind of layer: pattern, count, shape, skill parameters."""
        rows: dict[tuple[str, str], list[int]] = {}
        for layer in self.layers:
            pattern = re.sub(r"\.\d+(?=\.|$)", ".*", layer.path)
            shape = f"{layer.in_features} -> {layer.out_features}"
            rows.setdefault((pattern, shape), []).append(layer.n_parameters)
        return [(key[0], len(found), key[1], sum(found)) for key, found in rows.items()]


def attach_skills(
    backbone: nn.Module,
    make_inventory: Callable[..., Inventory],
    *,
    targets: Sequence[str],
    slot: RoutingSlot,
    granularity: str = "linear",
    attachment_point: str = "linear",
) -> Attachment:
    """Replace the targeted layers by skilled ones, in place; base weights are not touched.

    Args:
        backbone: Any model.
        make_inventory: Makes the skills of a layer from its features in and out, and what else the
            attachment point gives.
        targets: Which layers: ``"attention"``, ``"self_attention"``, ``"cross_attention"``,
            ``"mlp"`` (by position; see `mttl.skills.targets.roles`), ``"all"`` (every one inside a
            block of the stack), or patterns with ``*`` and ``?`` that match the end of a layer's
            dotted path (``"q_proj"``, ``"decoder.*.wo"``).
        slot: Where the layers find the routing of a forward pass.
        granularity: Which layers share a routing row: all of the ``"model"``, of a ``"stack"``
            (encoder, decoder), of a ``"block"``, of a ``"layer"`` (attention, feed-forward), or
            none: each ``"linear"`` has its own.
        attachment_point: What the inventories are made for: their class's ``attachment_point``.

    Raises:
        ValueError: If a target or the granularity is unknown, a target matches no layer, a layer
            cannot hold the inventory, or the backbone has skills already. It is left as it was.
    """
    placement = Placement(make_inventory, targets, attachment_point)
    return attach_kinds(backbone, [placement], slot=slot, granularity=granularity)


def attach_kinds(
    backbone: nn.Module,
    placements: Sequence[Placement],
    *,
    slot: RoutingSlot,
    granularity: str = "linear",
    fresh: bool = True,
) -> Attachment:
    """Put several kinds of skills on a backbone, side by side; see `attach_skills`.

    Raises ValueError if a place would get two kinds, too. Skills that are not ``fresh``, whose
    values will be loaded, do not look at the weight of their layer.
    """
    require_one_of(GRANULARITIES, granularity=granularity)
    if any(isinstance(module, SkilledLayer) for module in backbone.modules()):
        raise ValueError("the backbone has skills already; attach all of them in one call")
    blocks = block_paths(backbone)
    groups: dict[str, int] = {}
    layers: list[Attached] = []
    counted: set[nn.Parameter] = set()
    skilled: dict[str, dict[str, SkilledLayer]] = {point: {} for point in ATTACHMENT_POINTS}
    for placement in placements:
        point = placement.attachment_point
        where, found = ATTACHMENT_POINTS[point], skilled[point]
        first = None
        for path, sizes in _chosen(backbone, placement, blocks).items():
            same = [name for name, kind in ATTACHMENT_POINTS.items() if kind.layer is where.layer]
            if any(path in skilled[name] for name in same):
                advice = "give every kind targets of its own (attention, mlp, encoder.*, *.q)"
                if len(where.find(backbone)) == 1:
                    advice = "keep one of these kinds, and leave the others out"
                raise ValueError(
                    f"'{path}' would get two kinds of skills, and a {where.noun} can have one: "
                    + advice
                )
            base = backbone.get_submodule(path)
            name = path
            # A block is what the granularity calls a layer.
            if granularity != "layer" or linear_features(base) is not None:
                name = group_name(path, granularity, blocks)
            try:
                inventory = placement.make_inventory(*sizes)
                inventory.set_path(path)
                if fresh:
                    inventory.init_from_base(base)
                group = groups.setdefault(name, len(groups))
                found[path] = where.layer(base, inventory, slot, group)
            except ValueError as error:
                raise ValueError(f"'{path}': {error}") from error
            first = first or inventory
            inventory.tie_to(first)
            inventory.to(next(chain(base.parameters(), base.buffers())).device)
            own = [value for value in inventory.parameters() if value not in counted]
            counted.update(own)
            n_parameters = sum(parameter.numel() for parameter in own)
            layers.append(Attached(path, sizes[0], sizes[1], name, n_parameters))
    chosen = skilled["linear"] | skilled["head"]
    places = ATTACHMENT_POINTS["linear"].find(backbone)
    coverage = {
        word: (len(chosen.keys() & paths), len(paths))
        for word, paths in ATTACHMENT_POINTS["linear"].words(backbone, places).items()
        if chosen and word in ("attention", "mlp")
    }
    # Only now is the backbone touched: an error above leaves it as it was.
    for point, found in skilled.items():
        replaced = {}
        for path, layer in found.items():
            layer.base = ATTACHMENT_POINTS[point].take(backbone, path)
            replaced[layer.base] = layer
        for parent in list(backbone.modules()):
            for child, module in list(parent._modules.items()):
                if module in replaced:
                    setattr(parent, child, replaced[module])
        prepare = ATTACHMENT_POINTS[point].prepare
        if found and prepare is not None:
            prepare(backbone)
    return Attachment(tuple(layers), tuple(groups), coverage)


def _chosen(
    backbone: nn.Module, placement: Placement, blocks: list[str]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each place that a kind goes to, by path."""
    where = ATTACHMENT_POINTS[placement.attachment_point]
    # A layer may stand at several paths (tied weights): it gets one inventory, under the first.
    places = where.find(backbone)
    unknown = {
        path: type(module).__name__
        for path, module in backbone.named_modules()
        if path not in places and is_foreign(module)
    }
    chosen = choose_layers(
        *(places, placement.targets, blocks, unknown if where.layer is SkilledLinear else {}),
        words=where.words(backbone, {*places, *unknown}),
        noun=where.noun,
    )
    return {path: places[path] for path in chosen}
