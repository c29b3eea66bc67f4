"""A first pass of the backbone, for routers that read the last hidden states of every token."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from mttl.routing.context import RoutingSlot
from mttl.skills.inputs.prompt import has_encoder, last_stack


def add_first_pass(
    backbone: nn.Module, slot: RoutingSlot, skilled: Mapping[str, nn.Module]
) -> None:
    """Run a backbone's stack twice in each forward pass, if the routing weighs tokens.

    The first pass has the routing of the examples and no gradient, the second one the weights of
    the tokens. Raises a ValueError if the backbone has two stacks, or a layer with skills
    (``skilled``, by path) is outside the stack.
    """
    if has_encoder(backbone):
        raise ValueError(
            "the router weighs the tokens of one stack, but an encoder-decoder has two "
            f"({type(backbone).__name__}); use a decoder-only backbone, or router.kind: smear"
        )
    stack: Any = last_stack(backbone) or getattr(backbone, "base_model", backbone)
    inside = set(stack.modules())
    if outside := [path for path, layer in skilled.items() if layer not in inside]:
        raise ValueError(
            f"{', '.join(outside)}: the router weighs tokens before the output layer; remove it "
            "from skills.targets"
        )
    # Partial functions, since deep copies of the model copy its slot.
    second = ExitStack()
    stack.register_forward_pre_hook(partial(_first_pass, slot, second), with_kwargs=True)
    stack.register_forward_hook(partial(_end, second), always_call=True)


def _first_pass(
    slot: RoutingSlot, second: ExitStack, stack: nn.Module, args: Any, inputs: dict[str, Any]
) -> None:
    if not slot.in_use or slot.current.weigh is None:
        return
    own = {k: _first_cache(v) if hasattr(v, "get_seq_length") else v for k, v in inputs.items()}
    with torch.no_grad(), slot.checkpoint_contexts()[1]:  # without losses and records
        states = stack.forward(*args, **own).last_hidden_state
    torch.clear_autocast_cache()  # has weights without gradient
    second.enter_context(slot.use(slot.current.of_tokens(states)))


def _end(second: ExitStack, *_: Any) -> None:
    second.close()


def _first_cache(cache: Any) -> Any:
    """Return the first pass's cache; its layers are also those of ``cache``, for beam search."""
    if not hasattr(cache, "of_first_pass"):
        if cache.get_seq_length() or not cache.layers:
            raise ValueError(
                "the router's first pass adds its layers to the cache, so the cache must be empty "
                "and have layers already; use DynamicCache(config=backbone.config)"
            )
        cache.of_first_pass = copy.deepcopy(cache)
        cache.layers.extend(cache.of_first_pass.layers)
    return cache.of_first_pass
