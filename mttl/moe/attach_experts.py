"""Attachment of experts to the linear layers or feed-forward blocks of a backbone."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from mttl.moe.layer import MoELayer, SharedExpert
from mttl.routing.context import RoutingSlot
from mttl.routing.token.token_router import TokenRouter
from mttl.skills.attach import Attached, Attachment
from mttl.skills.blocks.feed_forward import (
    FeedForwardBlock,
    block_places,
    feed_forward_blocks,
    separate,
)
from mttl.skills.inventory import Inventory
from mttl.skills.targets import (
    CROSS,
    block_paths,
    choose_layers,
    group_name,
    inside_block,
    linear_places,
    members,
    stack_name,
)

# Projections that read the encoder's tokens in cross-attention.
KEY_OR_VALUE = re.compile(r"\.(k|v|key|value)(_proj)?$")


@dataclass(frozen=True)
class Place:
    """A module that gets experts."""

    path: str
    stack: str  # of its tokens: "encoder", "decoder" or "model"
    in_features: int
    out_features: int
    block: FeedForwardBlock | None = None  # parts of a feed-forward block


def expert_places(
    backbone: nn.Module,
    targets: Sequence[str],
    *,
    blocks: bool,
    every: int = 1,
    stacks: Sequence[str] | None = None,
) -> list[Place]:
    """Return the modules that get experts: feed-forward ``blocks`` or linear layers.

    Targets are those of `mttl.skills.attach_skills`; for blocks, ``"all"`` or patterns. Only
    every n-th transformer block of the stacks is used.

    Raises:
        ValueError: If no module is left, or a target or a stack does not exist.
    """
    parts = feed_forward_blocks(backbone) if blocks else {}
    found = block_places(backbone) if blocks else linear_places(backbone)
    features = {path: found[path] for path in parts} if blocks else found
    if not features:
        raise ValueError(
            "this backbone has no feed-forward block of a known form; use experts of linear layers"
        )
    outer = block_paths(backbone)
    words = ["all" if blocks and name == "mlp" else name for name in targets]
    # The output head is outside the blocks and stacks.
    inside = [path for path in features if inside_block(path, outer)] or list(features)
    known = dict.fromkeys(stack_name(path) for path in inside)
    for name in stacks or ():
        if name not in known:
            raise ValueError(f"stacks: this backbone has no '{name}'; it has {', '.join(known)}")
    places = [
        Place(
            path,
            "encoder" if CROSS.search(path) and KEY_OR_VALUE.search(path) else stack_name(path),
            *(features[path][0], features[path][1]),
            parts.get(path),
        )
        for path in choose_layers(features, words, outer, words=members(backbone, features))
        if (stacks is None or stack_name(path) in stacks) and _is_nth(path, outer, every)
    ]
    if not places:
        raise ValueError(
            f"moe.targets {', '.join(targets)} match no layer in every {every}-th block of "
            f"{', '.join(stacks or known)}; lower moe.every"
        )
    return places


def attach_experts(
    backbone: nn.Module,
    places: Sequence[Place],
    make_experts: Callable[[Place], Inventory],
    make_router: Callable[[Place], TokenRouter],
    *,
    slot: RoutingSlot,
    replace: bool = False,
    shared: Callable[[Place], Inventory] | None = None,
    granularity: str = "linear",
    groups: Sequence[str] = (),
    **settings: Any,
) -> Attachment:
    """Replace or augment modules of a backbone by mixture-of-experts layers, in place.

    If tasks have skills, too, call `mttl.skills.attach_skills` first, which has slot and
    granularity in common. Experts are added to the outputs of the places, or replace them.
    ``shared`` returns the expert of a place that processes all tokens. New routed groups follow the
    given ones. Settings are those of `MoELayer`: ``prior`` and both capacity factors.

    Raises:
        ValueError: If a layer cannot be made; the backbone is left unchanged.
    """
    outer = block_paths(backbone)
    numbers = {name: number for number, name in enumerate(groups)}
    names = [group_name(place.path, granularity, outer) for place in places]
    made: list[MoELayer] = []
    layers: list[Attached] = []
    for place, name in zip(places, names, strict=True):
        routed = settings.get("prior") is not None
        try:
            layer = MoELayer(
                make_experts(place),
                make_router(place),
                slot,
                # The base is set below, after all layers are made.
                base=None if replace else nn.Identity(),
                shared=None if shared is None else SharedExpert(shared(place)),
                name=place.path,
                stack=place.stack,
                group=numbers.setdefault(name, len(numbers)) if routed else None,
                causal=place.stack != "encoder",
                **settings,
            )
        except ValueError as error:
            raise ValueError(f"{error}; at '{place.path}'") from error
        made.append(layer)
    for place, name, layer in zip(places, names, made, strict=True):
        path = place.path
        base = separate(backbone, path) if place.block else backbone.get_submodule(path)
        device = next(base.parameters()).device
        layer.to(device).train(base.training)
        if not replace:
            layer.base = base
        above, _, child = path.rpartition(".")
        setattr(backbone.get_submodule(above), child, layer)
        parts = layer.experts, layer.router, layer.shared or nn.Identity()
        n_parameters = sum(p.numel() for part in parts for p in part.parameters())
        layers.append(Attached(path, place.in_features, place.out_features, name, n_parameters))
    return Attachment(tuple(layers), tuple(numbers))


def _is_nth(path: str, outer: list[str], every: int) -> bool:
    """Return whether a module is in a block whose number, from 1, is a multiple of ``every``."""
    if every == 1:
        return True
    block = inside_block(path, outer)
    return block is not None and (int(block.rpartition(".")[2]) + 1) % every == 0
