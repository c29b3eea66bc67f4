"""Ladder side-tuning: small networks parallel to the stack of blocks before the logits."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.mix import active_dtype, mix_blocks
from mttl.plugins.part_settings import PositiveInt
from mttl.skills.blocks.feed_forward_experts import ActivationSetting, activation_of
from mttl.skills.inputs.prompt import last_stack
from mttl.skills.inventory import NO_WEIGHTS, Inputs, Inventory, Merged, Outputs, draw
from mttl.skills.skilled_layer import SkilledBlock, hidden_states
from mttl.skills.targets import block_paths, linear_features


class LadderInventory(Inventory):
    r"""K side networks of a stack of N blocks, with a rung per block.

    A rung mixes the previous rung's output with the backbone's state :math:`h_n` after block n, and
    applies its feed-forward network, :math:`f_n(u) = O_n\,a(I_n\,\mathrm{norm}(u))`:

    .. math:: s_0 = D_0 h_0,\quad u_n = \mu_n s_{n-1} + (1 - \mu_n) D_n h_n,\quad
        s_n = u_n + f_n(u_n),\quad \mu_n = \sigma(\alpha_n / T),\ T = 0.1

    :math:`U\,\mathrm{norm}(s_N)` is added to the stack's output. All parameters, with
    :math:`\alpha`, are averaged by the mixing weights. The states are detached, so no gradient and
    no activations of the backbone below its head are needed.

    The paper's rungs are transformer blocks that start from pruned weights of the backbone, and
    their output replaces the stack's. Here rungs have no attention, so that caches need no further
    entries. A fresh ladder changes nothing.

    Args:
        in_features: Features of all N + 1 states of a token, concatenated.
        n_states: Number of states N + 1.
        side_features: Width of a ladder.
        activation: Activation of the rungs.

    References:
        Sung, Cho and Bansal, *LST: Ladder Side-Tuning for Parameter and Memory Efficient Transfer
        Learning*, NeurIPS 2022, arXiv:2206.06522.
    """

    internal = ("n_states",)
    lacks: ClassVar = {
        **NO_WEIGHTS,
        "stacks": "it stands beside all blocks; use another kind of skill (adapter)",
        "compiles": "it reads the states between blocks by hooks; set backbone.compile: false, or "
        "use skills that change layers (lora, adapter …)",
    }
    section_defaults: ClassVar = {"targets": ["stack"]}
    attachment_point = "stack"
    undecayed = ("gates",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        n_states: int,
        *,
        side_features: PositiveInt = 32,
        activation: ActivationSetting = "relu",
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.activation = activation_of(activation)
        n_rungs, hidden = n_states - 1, 4 * side_features
        shapes = n_skills, n_states, side_features, in_features // n_states
        self.down = nn.Parameter(torch.empty(shapes))
        self.inner = nn.Parameter(torch.empty(n_skills, n_rungs, hidden, side_features))
        self.outer = nn.Parameter(torch.empty(n_skills, n_rungs, side_features, hidden))
        self.gates = nn.Parameter(torch.empty(n_skills, n_rungs))
        self.up = nn.Parameter(torch.empty(n_skills, out_features, side_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rungs as `nn.Linear` does; gates are half open, the last projection is 0."""
        for weight in (self.down, self.inner, self.outer):
            draw(weight, "kaiming", weight.shape[-1])
        nn.init.zeros_(self.gates)
        nn.init.zeros_(self.up)

    def merge(self, weights: Float[Tensor, "B 1 K"]) -> Merged:
        down, inner, outer, gates, up = (mix_blocks(part, weights) for part in self.parameters())
        return down, inner, outer, (gates / 0.1).sigmoid(), up

    def combine(self, x: Inputs, y: Outputs, merged: Merged) -> Outputs:
        dtype = active_dtype(y)
        down, inner, outer, gates, up = (part.to(dtype) for part in merged)
        states = x.to(dtype).unflatten(-1, (down.shape[1], -1)).unbind(2)
        side = torch.bmm(states[0], down[:, 0].mT)
        for n, state in enumerate(states[1:]):
            read = torch.bmm(state, down[:, n + 1].mT)
            mixed = torch.lerp(read, side, gates[:, n, None, None])
            hidden = self.activation(torch.bmm(_norm(mixed), inner[:, n].mT))
            side = torch.baddbmm(mixed, hidden, outer[:, n].mT)
        return torch.baddbmm(y.to(dtype), _norm(side), up.mT)


def _norm(x: Float[Tensor, "B L S"]) -> Float[Tensor, "B L S"]:
    return nn.functional.layer_norm(x, x.shape[-1:]).to(x.dtype)


class SkilledStack(SkilledBlock):
    """A stack of blocks whose detached states a ladder reads."""

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
        # The output of a decoder-only stack does not contain the positions of a prompt.
        x = torch.cat([state[:, -y.shape[1] :] for state in states], -1)
        changed = self.changed(x, y, routing, merged)
        if isinstance(outputs, tuple):
            return (changed, *outputs[1:])
        outputs.last_hidden_state = changed
        return outputs


def stack_places(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return features of all states, features of the output, and states of the last stack."""
    stack = last_stack(backbone)
    if stack is None:
        return {}
    config = stack.config
    generates: Any = getattr(backbone, "can_generate", None)  # others transform states for the head
    head = generates() and linear_features(backbone.get_output_embeddings())  # type: ignore[operator]
    n_states = len(block_paths(stack)) + 1
    return {
        path: (n_states * config.hidden_size, head[0] if head else config.hidden_size, n_states)
        for path, module in backbone.named_modules()
        if module is stack
    }
