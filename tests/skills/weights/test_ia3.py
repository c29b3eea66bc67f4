"""Scales of outputs, beside plain loops and PEFT's (IA)³."""

from functools import partial

import pytest
import torch
from torch import nn

from helpers.backbones import batch, tiny_llama, tiny_t5
from helpers.compare import relative_error
from helpers.skills import filled, skilled
from mttl.routing import AverageRouter
from mttl.skills import IA3Inventory

# The same double-precision products in another order: some roundings of 1e-16.
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("bias", [True, False])
def test_one_skill_is_ia3_of_peft(bias):
    peft = pytest.importorskip("peft")
    base = nn.Linear(4, 6, bias=bias).double()
    config = peft.IA3Config(target_modules=["0"], feedforward_modules=[])
    theirs = peft.get_peft_model(nn.Sequential(base), config).double()
    layer = theirs.base_model.model[0]
    inventory = filled(IA3Inventory(4, 6, 1)).double()
    with torch.no_grad():
        layer.ia3_l["default"].copy_(1 + inventory.difference.t())
    x = torch.randn(3, 5, 4).double()
    weights = torch.ones(3, 1, 1).double()
    found = inventory.combine_linear(x, layer.base_layer, inventory.merge(weights))
    expected = theirs(x)
    torch.testing.assert_close(found, expected, **ROUNDING)
    towards = torch.randn_like(found)
    (ours,) = torch.autograd.grad((found * towards).sum(), inventory.difference)
    (of_peft,) = torch.autograd.grad((expected * towards).sum(), layer.ia3_l["default"])
    torch.testing.assert_close(ours, of_peft.t(), **ROUNDING)
    folded = inventory.fold(base.weight, base.bias, weights[0])
    merged = theirs.merge_and_unload()[0]
    torch.testing.assert_close(folded, (merged.weight, merged.bias), **ROUNDING)


tiny_gated_t5 = partial(tiny_t5, feed_forward_proj="gated-gelu")
# Backbone, PEFT's names of its targets, the one whose inputs it scales, and ours for that one.
FAMILIES = {
    "t5": (tiny_t5, "SEQ_2_SEQ_LM", ["k", "v"], "wo", "wi"),
    "t5, gated": (tiny_gated_t5, "SEQ_2_SEQ_LM", ["k", "v"], "wo", "wi_1"),
    "llama": (tiny_llama, "CAUSAL_LM", ["k_proj", "v_proj"], "down_proj", "up_proj"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_models_are_those_of_peft(family):
    """PEFT scales what the last layer of a feed-forward block reads, ours what a layer makes.

    In blocks with a gate both scale the hidden layer: it is the product of the gate and the output
    of the other layer. Behind other activations it has no place here, except that positive scales
    pass through relu.
    """
    peft = pytest.importorskip("peft")
    make, kind, outputs, reader, maker = FAMILIES[family]
    where = {"targets": [*outputs, maker], "router": AverageRouter, "n_tasks": 1, "n_skills": 1}
    model = skilled(make(), inventory="ia3", **where).double()
    config = peft.IA3Config(
        target_modules=[*outputs, reader], feedforward_modules=[reader], task_type=kind
    )
    theirs = peft.get_peft_model(make().double(), config).double().eval()
    pairs = []
    for path, layer in model.skilled_layers().items():
        place = path.removesuffix(maker) + reader if path.endswith(maker) else path
        scales = theirs.base_model.model.get_submodule(place).ia3_l["default"]
        assert scales.shape == (
            (1, 24) if path.endswith(maker) else (layer.inventory.out_features, 1)
        )
        with torch.no_grad():
            scales.copy_(1 + layer.inventory.difference.view_as(scales))
        assert scales.min() > 0
        pairs.append((layer.inventory.difference, scales))
    assert sum(p.requires_grad for p in theirs.parameters()) == len(pairs)
    inputs = batch(4)
    found, expected = model(torch.zeros(4, dtype=torch.long), **inputs), theirs(**inputs)
    # The norms of both families compute in single precision, whatever they are given.
    assert relative_error(found.logits, expected.logits) < 1e-5
    found.loss.backward()
    expected.loss.backward()
    for difference, scales in pairs:
        assert relative_error(difference.grad.view_as(scales), scales.grad) < 1e-5
