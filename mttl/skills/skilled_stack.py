"""The stack of the backbone whose output becomes logits, with ladders parallel to it."""

from typing import Any

import torch
from torch import Tensor, nn

from mttl.skills.inputs.skilled_embedding import last_stack
from mttl.skills.skilled_layer import SkilledBlock, hidden_states
from mttl.skills.targets import block_paths, linear_features


class SkilledStack(SkilledBlock):
    """A stack of blocks, its inventory of ladders, and its routing.

    Skills read the states in front of the first block and behind every one, without their history.
    """

    def __init__(self, base: nn.Module, *given: Any) -> None:
        super().__init__(base, *given)
        self.blocks = block_paths(base)

    def forward(self, *args: Any, **settings: Any) -> Any:
        routing, merged = self.merge()
        states: list[Tensor] = []

        def first(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            states.append(hidden_states(given, named).detach())

        def behind(_: nn.Module, given: Any, found: Any) -> None:
            states.append((found[0] if isinstance(found, tuple) else found).detach())

        blocks = [self.base.get_submodule(path) for path in self.blocks]
        handles = [blocks[0].register_forward_pre_hook(first, with_kwargs=True)]
        handles += [block.register_forward_hook(behind) for block in blocks]
        try:
            outputs = self.base(*args, **settings)
        finally:
            for handle in handles:
                handle.remove()
        y = outputs[0]
        # A prompt in front of the text is not among what a decoder-only stack returns.
        x = torch.cat([state[:, -y.shape[1] :] for state in states], -1)
        changed = self.changed(x, y, routing, merged)
        if isinstance(outputs, tuple):
            return (changed, *outputs[1:])
        outputs.last_hidden_state = changed
        return outputs


def stack_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features of all states of a token and of the output, and states, of the last stack."""
    stack = last_stack(backbone)
    if stack is None:
        return {}
    config = stack.config
    head = linear_features(backbone.get_output_embeddings())  # type: ignore[operator]
    n_states = len(block_paths(stack)) + 1
    return {
        path: (n_states * config.hidden_size, head[0] if head else config.hidden_size, n_states)
        for path, module in backbone.named_modules()
        if module is stack
    }
