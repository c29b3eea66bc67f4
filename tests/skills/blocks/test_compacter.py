"""Compacter: plain sums of Kronecker products, and rules that all layers share."""

import copy

import pytest
import torch

from helpers.backbones import batch, fill, tiny_llama, tiny_t5
from helpers.skills import skilled
from mttl.config.load import load_config
from mttl.errors import ConfigError
from mttl.model_tensors import skill_tensors
from mttl.routing import RoutingSlot
from mttl.skills import CompacterInventory, attach_skills

IDS = torch.tensor([2, 0, 1, 0])


@pytest.mark.parametrize("rank", [1, 2, None])
def test_projections_are_sums_of_kronecker_products(rank):
    inventory = CompacterInventory(8, 12, 3, hidden_features=4, n_products=4, rank=rank)
    fill(inventory)
    down, _, up, _ = inventory.projections()
    for found, factors in ((down, inventory.down), (up, inventory.up)):
        for k in range(3):
            small = factors[0][k] @ factors[1][k] if rank else factors[0][k]
            expected = sum(torch.kron(inventory.rule[k, i], small[i]) for i in range(4))
            torch.testing.assert_close(found[k], expected)


def test_a_fresh_way_down_varies_as_that_of_a_linear_layer():
    torch.manual_seed(0)
    for rank in (4, None):
        down = CompacterInventory(256, 256, 4, hidden_features=64, rank=rank).projections()[0]
        # Products of uniform numbers: the estimate is within some percent of 1 / (3 I).
        torch.testing.assert_close(down.var() * 3 * 256, torch.tensor(1.0), rtol=0.3, atol=0)


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


def test_a_shared_rule_learns_from_all_layers():
    model = skilled(tiny_llama(), inventory="compacter", router="polytropon-plain").double()
    model(IDS, **batch(4)).loss.backward()
    shared = next(iter(model.skilled_layers().values())).inventory.rule
    apart = copy.deepcopy(model)
    for layer in apart.skilled_layers().values():
        layer.inventory.rule = torch.nn.Parameter(shared.detach().clone())
    apart.zero_grad()
    apart(IDS, **batch(4)).loss.backward()
    parts = [layer.inventory.rule.grad for layer in apart.skilled_layers().values()]
    assert all(part.any() for part in parts)
    torch.testing.assert_close(shared.grad, sum(parts))


def test_what_is_shared_is_counted_once():
    found = []
    for shared in (True, False):
        attachment = attach_skills(
            tiny_llama(),
            lambda i, o: CompacterInventory(i, o, 2, hidden_features=4, shared=shared),  # noqa: B023
            targets=["mlp"],
            slot=RoutingSlot(),
            site="block",
        )
        found.append([layer.n_parameters for layer in attachment.layers])
    rule = 2 * 4**3
    assert found[0] == [found[1][0], found[1][0] - rule]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_products": 3}, r"n_products \(3\) must divide in_features \(8\)"),
        ({"hidden_features": 6}, r"n_products \(4\) must divide hidden_features \(6\)"),
        ({"rank": 0}, r"rank \(0\) must be at least 1"),
        ({"n_products": 0}, r"n_products \(0\) must be at least 1"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        CompacterInventory(8, 12, 3, **settings)


def test_what_layers_share_cannot_be_spread_over_processes():
    names = "crossfit.yaml+skills/compacter.yaml+trainer/fsdp2_cpu.yaml"
    with pytest.raises(
        ConfigError, match=r"skills\.shared must be false with trainer\.strategy fs"
    ):
        load_config(names)
    assert load_config(names, ["skills.shared=false"]).skills.kind == "compacter"
