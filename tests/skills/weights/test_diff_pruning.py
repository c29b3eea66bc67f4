"""Diff pruning, beside plain loops of the paper's formulas."""

import math
from functools import partial

import pytest
import torch

from helpers.backbones import batch, fill, tiny_t5
from helpers.skills import mixing, skilled
from mttl.skills import DiffPruningInventory

I, O, K = 6, 8, 3  # noqa: E741


def made(**settings) -> DiffPruningInventory:
    inventory = DiffPruningInventory(I, O, K, **settings).double()
    fill(inventory)
    return inventory


def plain_mask(inventory: DiffPruningInventory, u: list[torch.Tensor] | None) -> torch.Tensor:
    """Return masks entry by entry, of given draws or of none."""
    low, high = inventory.stretch
    all_logits = [inventory.logits]
    if inventory.groups != "none":
        all_logits.append(inventory.group_logits)
    mask = torch.ones(K, O, I).double()
    for number, logits in enumerate(all_logits):
        for k, o, i in torch.cartesian_prod(*map(torch.arange, logits.shape)).tolist():
            alpha = inventory.rate * float(logits[k, o, i].detach())
            if u is not None:
                drawn = min(max(float(u[number][k, o, i]), 1e-4), 1 - 1e-4)
                alpha = (math.log(drawn) - math.log(1 - drawn) + alpha) / inventory.temperature
            s = 1 / (1 + math.exp(-alpha))
            z = min(1, max(0, s * (high - low) + low))
            rows = slice(None) if logits.shape[1] == 1 < O else o
            mask[k, rows, slice(None) if logits.shape[2] == 1 else i] *= z
    return mask


SETTINGS = [
    {},
    {"temperature": 0.5, "stretch": (-0.1, 1.1)},
    {"rate": 3.0, "groups": "rows"},
    {"groups": "layer"},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("training", [False, True])
def test_equals_the_formulas_entry_by_entry(settings: dict, training: bool) -> None:
    inventory = made(**settings).train(training)
    x, y = torch.randn(4, 2, I).double(), torch.randn(4, 2, O).double()
    weights = mixing(4, 1, K).double()
    torch.manual_seed(3)
    found = inventory(x, y, weights)
    u = None
    if training:
        torch.manual_seed(3)
        u = [torch.rand_like(logits) for logits in inventory._all_logits()]
    changes = plain_mask(inventory, u) * inventory.change
    for b in range(4):
        change = sum(weights[b, 0, k] * changes[k] for k in range(K))
        torch.testing.assert_close(found[b], y[b] + x[b] @ change.t())


def test_gradients_pass_through_the_stretched_draws() -> None:
    """As in the released code: dz/dα = s (1 - s) (r - l) where the cut leaves z alone, else 0."""
    inventory = made().train()
    weights = torch.ones(1, 1, K).double()
    torch.manual_seed(3)
    merged = inventory.merge(weights)[0][0]
    direction = torch.randn_like(merged)
    change, logits = torch.autograd.grad(merged, [inventory.change, inventory.logits], direction)
    torch.manual_seed(3)
    s = (torch.rand_like(inventory.logits).logit() + inventory.logits).sigmoid()
    stretched = 3 * s - 1.5
    inside = (stretched > 0) & (stretched < 1)
    slope = torch.where(inside, 3 * s * (1 - s), 0)
    torch.testing.assert_close(change, direction * stretched.clamp(0, 1))
    torch.testing.assert_close(logits, direction * inventory.change * slope)


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_expected_entries_are_the_mean_of_draws(settings: dict) -> None:
    inventory = made(penalty=0.25, **settings)
    torch.manual_seed(0)
    n_draws = 1500
    drawn = torch.zeros(K).double()
    for _ in range(n_draws):
        drawn += (inventory.mask(drawn=True) > 0).flatten(1).sum(1)
    expected = inventory.expected_entries()
    # A group switches many entries at once: at most all of them, half of the time.
    error = I * O / 2 / math.sqrt(n_draws)
    torch.testing.assert_close(drawn / n_draws, expected, rtol=0, atol=4 * error)
    torch.testing.assert_close(inventory.penalties()["l0"], 0.25 * expected.sum())


def test_rounding_keeps_the_largest_changes() -> None:
    inventory, rounded = made(start=5.0).eval(), made(start=5.0, keep=0.25).eval()
    whole, kept = inventory.changes(), rounded.changes()
    for k in range(K):
        n = round(0.25 * I * O)
        best = set(whole[k].abs().flatten().topk(n).indices.tolist())
        assert {i for i, value in enumerate(kept[k].flatten().tolist()) if value} <= best
        assert torch.equal(kept[k].flatten()[list(best)], whole[k].flatten()[list(best)])
    assert float(rounded.facts()["density"]) <= 0.25


def test_a_model_adds_the_penalty_in_training_and_tells_its_density() -> None:
    made = partial(DiffPruningInventory, penalty=1e-3, start=0.0)
    model = skilled(tiny_t5(), inventory=made, targets=["attention"])
    layers = [layer.inventory for layer in model.skilled_layers().values()]
    for inventory in layers:
        inventory.reset_parameters()
    inputs, tasks = batch(2), torch.tensor([0, 2])
    n_entries = sum(one.in_features * one.out_features for one in layers)
    for training in (True, False):
        routing = model.train(training).route(tasks)
        with model.slot.use(routing):
            model.backbone(**inputs)
        assert list(routing.losses) == (["l0"] if training else [])
        if training:  # a logit of 0 is as likely on as off
            assert float(routing.losses["l0"]) == pytest.approx(1e-3 * K * n_entries / 2)
    assert float(model.skill_facts()["density"]) == 0.0
