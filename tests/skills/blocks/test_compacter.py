"""Compacter: plain sums of Kronecker products, and rules that all layers share."""

import copy

import pytest
import torch

from helpers.adapterhub import adapterhub, mixed
from helpers.backbones import tiny_llama, tiny_t5
from helpers.compare import assert_same
from helpers.skills import filled, mixing, skilled
from mttl.checkpoints.model_tensors import skill_tensors
from mttl.routing import RoutingSlot
from mttl.skills import CompacterInventory, attach_skills


def their_parts(inventory):
    """Return our parameters by the names that AdapterHub's adapters of PHM layers have.

    Their layers multiply rows of inputs by a matrix, ours a matrix by columns: all is transposed.
    """
    found = {"phm_rule": inventory.rule.mT}
    for name, factors, bias in (
        ("adapter_down.0", inventory.down, inventory.down_bias),
        ("adapter_up", inventory.up, inventory.up_bias),
    ):
        words = ("W",) if inventory.rank is None else ("W_right", "W_left")
        for word, factor in zip(words, factors, strict=True):
            found[f"{name}.{word}"] = factor.mT
        found[f"{name}.b"] = bias
        # Where layers share no rules, theirs has one for each projection, ours one for both.
        found[f"{name}.phm_rule"] = found["phm_rule"]
    return found


@pytest.mark.parametrize("mix", ["factors", "outputs"])
@pytest.mark.parametrize("n_skills", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rank", [1, 2, None])
def test_mixtures_are_those_of_adapterhubs_compacter(rank, shared, n_skills, mix):
    hub = adapterhub()
    config = hub.configuration.CompacterConfig(
        original_ln_after=False,  # the model's residual connection and norm behind the block
        phm_rank=rank or 1,
        factorized_phm_W=rank is not None,
        shared_phm_rule=shared,
    )
    adapter = hub.modeling.Adapter("skill", 12, 8, config)
    settings = {"hidden_features": 8, "activation": "gelu", "parallel": False, "mix": mix}
    inventory = filled(CompacterInventory(12, 12, n_skills, rank=rank, **settings)).double()
    parts = their_parts(inventory)
    theirs = {name for name, _ in adapter.named_parameters()} | ({"phm_rule"} if shared else set())
    x, y = torch.randn(2, 3, 5, 12, dtype=torch.double).requires_grad_().unbind()
    # In double precision rows sum to 1 there, too.
    weights = mixing(3, 1, n_skills).double().log().softmax(-1)
    expected = mixed(adapter, {name: parts[name] for name in theirs}, weights, x, y, mix=mix)
    found = inventory(x, y, weights)
    # The same sums in another order: some dozens of roundings of 1e-16.
    assert_same(found, expected, [y, *inventory.parameters()], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, y)


def test_layers_share_their_rules_and_nothing_else():
    model = skilled(tiny_t5(), inventory="compacter")
    layers = list(model.skilled_layers().values())
    assert all(layer.inventory.rule is layers[0].inventory.rule for layer in layers)
    assert len({id(layer.inventory.down[0]) for layer in layers}) == len(layers)
    names = [name for name in skill_tensors(model) if name.endswith("rule")]
    assert names == ["encoder.block.0.layer.0.SelfAttention.rule"]
    twin = copy.deepcopy(model)
    rules = {layer.inventory.rule for layer in twin.skilled_layers().values()}
    assert len(rules) == 1
    assert rules.isdisjoint({layers[0].inventory.rule})


def test_what_is_shared_is_counted_once():
    found = []
    for shared in (True, False):
        attachment = attach_skills(
            tiny_llama(),
            lambda i, o: CompacterInventory(i, o, 2, hidden_features=4, shared=shared),  # noqa: B023
            targets=["mlp"],
            slot=RoutingSlot(),
            attachment_point="block",
        )
        found.append([layer.n_parameters for layer in attachment.layers])
    rule = 2 * 4**3
    assert found[0] == [found[1][0], found[1][0] - rule]
