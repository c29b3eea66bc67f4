"""Attachment of inventories of skills to parts of a backbone."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from torch import nn

from mttl.aggregation.packed_weights import is_foreign
from mttl.io.errors import require_one_of
from mttl.routing.context import RoutingSlot
from mttl.skills.attachment_points import ATTACHMENT_POINTS
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_layer import SkilledLayer, SkilledLinear, Slot
from mttl.skills.targets import (
    GRANULARITIES,
    block_paths,
    choose_layers,
    group_name,
    linear_features,
)


@dataclass(frozen=True)
class Placement:
    """One kind of skill and its targets: arguments of `attach_skills`."""

    make_inventory: Callable[..., Inventory]
    targets: Sequence[str]
    attachment_point: str = "linear"


@dataclass(frozen=True)
class Level:
    """Kinds of skills that share a slot: arguments of `attach_levels`."""

    placements: Sequence[Placement]
    slot: Slot
    granularity: str = "linear"
    fresh: bool = True  # whether skills start from the weights of their layers, if their kind does


# Layers by type and path, from the inside out.
Stacks: TypeAlias = dict[type[SkilledLayer], dict[str, list[SkilledLayer]]]


@dataclass(frozen=True)
class Attached:
    """A layer that received skills."""

    path: str
    in_features: int
    out_features: int
    group: str
    n_parameters: int


@dataclass(frozen=True)
class Attachment:
    """The report of `attach_skills` or `mttl.moe.attach_experts`."""

    layers: tuple[Attached, ...]  # with skills, in the backbone's order
    groups: tuple[str, ...]  # names of the routed groups, which a layer's `group` numbers
    # Numbers of linear layers in "attention" and "mlp": with skills, and all.
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
    """Replace the targeted layers by layers with skills, in place; base weights do not change.

    Args:
        backbone: Any model.
        make_inventory: Function that makes the skills of a layer from its input and output
            features, and further sizes that the attachment point gives.
        targets: Layers to replace: ``"attention"``, ``"self_attention"``, ``"cross_attention"``,
            ``"mlp"`` (by position; see `mttl.skills.targets.roles`), ``"all"`` (every one inside a
            block of the stack), or patterns with ``*`` and ``?`` that match the end of a layer's
            dotted path (``"q_proj"``, ``"decoder.*.wo"``).
        slot: Slot from which the layers read the routing of a forward pass.
        granularity: Unit of layers that share routing weights: the ``"model"``, a ``"stack"``
            (encoder, decoder), a ``"block"``, a ``"layer"`` (attention, feed-forward), or a single
            ``"linear"`` layer.
        attachment_point: Attachment point of the inventories' class.

    Raises:
        ValueError: If a target or the granularity is unknown, a target matches no layer, a layer
            cannot hold the inventory, or the backbone has skills already; it is left unchanged.
    """
    placement = Placement(make_inventory, targets, attachment_point)
    return attach_levels(backbone, [Level([placement], slot, granularity)])[0]


def attach_levels(backbone: nn.Module, levels: Sequence[Level]) -> list[Attachment]:
    """Attach several levels of skills, from the inside out; see `attach_skills`.

    It also raises ValueError if a module would get two kinds of a level.
    """
    if any(isinstance(module, SkilledLayer) for module in backbone.modules()):
        raise ValueError("the backbone has skills already; attach all kinds in one call")
    stacks: Stacks = {where.layer: {} for where in ATTACHMENT_POINTS.values()}
    attachments = [_planned(backbone, level, stacks) for level in levels]
    # The backbone changes only here, so that an error above leaves it unchanged.
    for where in ATTACHMENT_POINTS.values():
        replaced = {}
        for path, layers in (found := stacks.pop(where.layer, {})).items():
            base = where.take(backbone, path)
            replaced[base] = layers[-1]
            for layer in layers:
                layer.base, base = base, layer
        for parent in list(backbone.modules()):
            for child, module in list(parent._modules.items()):
                if module in replaced:
                    setattr(parent, child, replaced[module])
        if found and where.prepare is not None:
            where.prepare(backbone)
    return attachments


def _planned(backbone: nn.Module, level: Level, stacks: Stacks) -> Attachment:
    """Make the layers of a level and add them to those of the levels inside."""
    granularity, slot = level.granularity, level.slot
    require_one_of(GRANULARITIES, granularity=granularity)
    blocks = block_paths(backbone)
    groups: dict[str, int] = {}
    layers: list[Attached] = []
    counted: set[nn.Parameter] = set()
    for placement in level.placements:
        point = placement.attachment_point
        where, found = ATTACHMENT_POINTS[point], stacks[ATTACHMENT_POINTS[point].layer]
        first = None
        for path, sizes in _chosen(backbone, placement, blocks).items():
            inside = found.setdefault(path, [])
            if any(layer.slot is slot for layer in inside):
                advice = "give every kind separate targets (attention, mlp, encoder.*, *.q)"
                if len(where.find(backbone)) == 1:
                    advice = "keep one of these kinds"
                raise ValueError(
                    f"'{path}' would get two kinds of skills, but a {where.noun} can have only "
                    f"one: {advice}"
                )
            base = backbone.get_submodule(path)
            name = path
            # The granularity "layer" means attention and feed-forward blocks.
            if granularity != "layer" or linear_features(base) is not None:
                name = group_name(path, granularity, blocks)
            try:
                inventory = placement.make_inventory(*sizes)
                if inside and inventory.reads_weight:
                    raise ValueError(
                        f"{type(inventory).__name__} reads the weight of its layer, which has "
                        "skills of another run; choose other targets, or another kind (lora)"
                    )
                inventory.set_path(path)
                if level.fresh:
                    inventory.init_from_base(base)
                group = groups.setdefault(name, len(groups))
                inside.append(where.layer(base, inventory, slot, group))
            except ValueError as error:
                raise ValueError(f"'{path}': {error}") from error
            first = first or inventory
            inventory.tie_to(first)
            inventory.to(next(chain(base.parameters(), base.buffers())).device)
            own = [value for value in inventory.parameters() if value not in counted]
            counted.update(own)
            n_parameters = sum(parameter.numel() for parameter in own)
            layers.append(Attached(path, sizes[0], sizes[1], name, n_parameters))
    linear = stacks[SkilledLinear].items()
    chosen = {path for path, inside in linear if any(layer.slot is slot for layer in inside)}
    places = ATTACHMENT_POINTS["linear"].find(backbone)
    coverage = {
        word: (len(chosen & {*paths}), len(paths))
        for word, paths in ATTACHMENT_POINTS["linear"].words(backbone, places).items()
        if chosen and word in ("attention", "mlp")
    }
    return Attachment(tuple(layers), tuple(groups), coverage)


def _chosen(
    backbone: nn.Module, placement: Placement, blocks: list[str]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the targeted modules by path."""
    where = ATTACHMENT_POINTS[placement.attachment_point]
    # A layer with several paths (tied weights) gets one inventory, under the first path.
    places = where.find(backbone)
    unknown = {
        path: type(module).__name__
        for path, module in backbone.named_modules()
        if path not in places and is_foreign(module) and where.layer is SkilledLinear
    }
    words = where.words(backbone, {*places, *unknown})
    chosen = choose_layers(places, placement.targets, blocks, unknown, words=words, noun=where.noun)
    return {path: places[path] for path in chosen}
