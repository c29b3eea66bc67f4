"""Experts that share a frozen block, against a loop over tokens and experts."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES, batch, fill
from mttl.moe.attach_experts import attach_experts, expert_places
from mttl.routing import RoutingSlot, SharedRouter
from mttl.routing.token.choice import Tokens, gate_matrix
from mttl.routing.token.top_k import TopKRouter
from mttl.skills import SkilledModel
from mttl.skills.blocks.feed_forward import feed_forward_blocks
from mttl.skills.blocks.lora_block import LoRABlockExperts, parts_of

E, TASKS = 4, torch.tensor([0, 1, 1])


def model_of(family: str) -> SkilledModel:
    backbone, slot = BACKBONES[family]().requires_grad_(False), RoutingSlot()
    attach_experts(
        *(backbone, expert_places(backbone, ["all"], blocks=True)),
        lambda place: LoRABlockExperts(16, 16, E, block=place.block, rank=2, alpha=3.0),
        lambda place: TopKRouter(16, E, top_k=2),
        slot=slot,
    )
    return SkilledModel(backbone, SharedRouter(0, 2), slot).double().eval()


@pytest.mark.parametrize("family", ["t5", "llama", "bart"])
def test_each_expert_is_the_block_with_its_own_changes(family: str) -> None:
    model, inputs = model_of(family), batch(3)
    plain = BACKBONES[family]().double().eval()(**inputs).logits
    # Experts are equal at first, and gates sum to 1 in single precision.
    torch.testing.assert_close(model(TASKS, **inputs).logits, plain, rtol=1e-4, atol=1e-5)
    path, layer = next(iter(model.token_layers().items()))
    fill(layer)
    twin = copy.deepcopy(layer)
    assert twin.experts.block[0].up is dict(twin.named_modules())[f"base.{_name(twin)}"]
    x = torch.randn(9, 16).double()
    assignment = layer.router(Tokens(x))
    found = layer.experts.dispatch(x, assignment)
    block, gates = layer.experts.block[0], gate_matrix(assignment)
    expected = torch.zeros_like(found)
    for expert in range(E):
        changed = {}
        for name, part in parts_of(block).items():
            change = layer.experts.changes_of[name]
            changed[name] = copy.deepcopy(part)
            with torch.no_grad():
                delta = 1.5 * change.up[expert] @ change.down[expert].T
                changed[name].weight += delta
        hidden = changed["up"](x)
        if "gate" in changed:
            hidden = block.activation(changed["gate"](x)) * hidden
        else:
            hidden = block.activation(hidden)
        expected += gates[:, expert, None] * changed["down"](hidden)
    torch.testing.assert_close(found, expected)
    assert path in feed_forward_blocks(BACKBONES[family]())
    model(TASKS, **inputs).loss.backward()
    assert all(value.grad is not None for value in layer.experts.parameters())
    assert all(value.grad is None for value in layer.base.parameters())


def _name(layer: nn.Module) -> str:
    up = layer.experts.block[0].up
    return next(name for name, module in layer.base.named_modules() if module is up)


def test_a_block_with_skills_cannot_be_shared() -> None:
    block = next(iter(feed_forward_blocks(BACKBONES["llama"]()).values()))
    with pytest.raises(ValueError, match="contains Identity cannot be shared by experts; remove"):
        LoRABlockExperts(16, 16, E, block=replace(block, up=nn.Identity()))
