"""A first pass of the backbone, for routers that read the last hidden states of every token."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from mttl.routing.context import RoutingSlot, TokenRouting
from mttl.skills.inputs.prompt import has_encoder, last_stack


def add_first_pass(
    backbone: nn.Module, slot: RoutingSlot, skilled: Mapping[str, nn.Module]
) -> None:
    """Run a backbone's stack twice in each forward pass, if the routing weighs tokens.

    The first pass has the routing of the examples and no gradient. The second one has the weights
    of the tokens, from the last hidden states of the first. Raises a ValueError if the backbone has
    two stacks, or a layer with skills (``skilled``, by path) is outside the stack.
    """
    if has_encoder(backbone):
        raise ValueError(
            "the router weighs the tokens of one stack, but an encoder-decoder has two; use a "
            "decoder-only backbone, or router.kind: smear"
        )
    stack: Any = last_stack(backbone) or getattr(backbone, "base_model", backbone)
    known = {id(module) for module in stack.modules()}
    for path, layer in skilled.items():
        if id(layer) not in known:
            raise ValueError(
                f"'{path}' is outside the stack whose tokens the router weighs; remove it from "
                "skills.targets"
            )
    # Partial functions, since deep copies of the model copy its slot.
    stack.register_forward_pre_hook(partial(_first_pass, slot), with_kwargs=True)
    stack.register_forward_hook(partial(_end, slot), always_call=True)


def _first_pass(slot: RoutingSlot, stack: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
    if not slot.in_use or slot.current.weigh is None:
        return
    routing, own = slot.current, dict(inputs)
    for name in ("cache", "past_key_values"):  # since transformers 5.24, and before
        if own.get(name) is not None:
            own[name] = _first_cache(own[name])
    with torch.no_grad(), slot.use(routing.without_records()):
        states = stack.forward(*args, **own).last_hidden_state
    # Autocast would use weights without gradient again.
    torch.clear_autocast_cache()
    slot.begin(routing.of_tokens(states))


def _end(slot: RoutingSlot, *_: Any) -> None:
    if slot.in_use and isinstance(slot.current, TokenRouting):
        slot.end()


def _first_cache(cache: Any) -> Any:
    """Return the first pass's cache; its layers are also those of ``cache``, for beam search."""
    if not hasattr(cache, "of_first_pass"):
        if cache.get_seq_length():
            raise ValueError(
                "the cache was filled without the router's first pass; generate through "
                "SkilledModel.generate, or start with an empty cache"
            )
        cache.of_first_pass = copy.deepcopy(cache)
        cache.layers.extend(cache.of_first_pass.layers)
    return cache.of_first_pass
