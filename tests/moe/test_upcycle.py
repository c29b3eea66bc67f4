"""Experts that start as copies of a dense block leave a network as it was."""

from functools import partial

import pytest
import torch
from torch import nn

from helpers.backbones import batch, tiny_bart, tiny_gpt2, tiny_llama, tiny_t5
from helpers.experts import copies, token_model, top2
from helpers.skills import INVENTORIES
from mttl.moe.upcycle import silent, upcycle
from mttl.routing import RoutingSlot
from mttl.skills import attach_skills
from mttl.skills.blocks.feed_forward import feed_forward_blocks

TASKS = torch.tensor([0, 2])


MODELS = {
    "t5": tiny_t5,
    "gated t5": partial(tiny_t5, feed_forward_proj="gated-gelu"),
    "bart": tiny_bart,
    "llama": tiny_llama,
}


@pytest.mark.parametrize("name", MODELS)
def test_copies_compute_what_the_block_did_and_share_its_gradients(name):
    inputs = batch(2)
    dense = MODELS[name]().double().train()  # small entries are what is left of large terms
    before = dense(**inputs)
    before.loss.backward()
    plain = {path: block.down.weight.grad for path, block in feed_forward_blocks(dense).items()}
    model = token_model(MODELS[name](), experts="copies", filled=False, train_backbone=True)
    assert len(model.token_layers()) == (2 if name == "llama" else 4)
    found = model.double().train()(TASKS, **inputs)
    # Gates that sum to 1 up to rounding, through a few layers.
    torch.testing.assert_close(found.logits, before.logits, rtol=1e-4, atol=1e-5)
    found.loss.backward()
    for path, layer in model.token_layers().items():
        # Every expert's gradient is that of its tokens, by their gates: together, the block's.
        found = layer.experts.down.grad.sum(0)
        torch.testing.assert_close(found, plain[path])


@pytest.mark.parametrize("name", ["t5", "bart", "llama"])
def test_dropout_of_hidden_units_moves_along(name):
    backbone = MODELS[name]()
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.25
        if hasattr(module, "activation_dropout"):
            module.activation_dropout = 0.25
    model = token_model(backbone, experts="copies", filled=False)
    wanted = 0.0 if name == "llama" else 0.25  # Llama's blocks have none
    for layer in model.token_layers().values():
        assert layer.experts.dropout == wanted
    if name == "bart":
        assert {layer.activation_dropout for layer in backbone.model.encoder.layers} == {0.0}
        assert isinstance(backbone.model.encoder.layers[0].fc2, nn.Identity)


def test_a_shared_expert_that_is_silent_changes_nothing():
    inputs = batch(2)
    before = tiny_bart()(**inputs).logits
    model = token_model(
        tiny_bart(), experts="copies", filled=False, shared=lambda place: silent(copies(place, 1))
    )
    torch.testing.assert_close(model(TASKS, **inputs).logits, before, rtol=1e-4, atol=1e-5)
    layer = next(iter(model.token_layers().values()))
    with torch.no_grad():
        layer.shared.experts.down.normal_()
    assert not torch.allclose(model(TASKS, **inputs).logits, before, atol=1e-2)


def test_blocks_that_cannot_be_copied_are_refused_with_the_reason():
    backbone, slot = tiny_t5(), RoutingSlot()
    attach_skills(backbone, lambda i, o: INVENTORIES["ia3"](i, o, 2), targets=["mlp"], slot=slot)
    block = next(iter(feed_forward_blocks(backbone).values()))
    with pytest.raises(ValueError, match="block that contains SkilledLinear cannot be copied"):
        upcycle(block, 2)
    backbone = tiny_llama()
    del backbone.model.layers[0].mlp.act_fn
    with pytest.raises(ValueError, match="LlamaMLP has the projections of a feed-forward block"):
        feed_forward_blocks(backbone)
    with pytest.raises(ValueError, match="no feed-forward block of a known form"):
        token_model(tiny_gpt2(), experts="copies", router=top2)
