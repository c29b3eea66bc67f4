"""Sparse adapters: masked networks, the masks of which are fixed before training."""

import pytest
import torch
from torch import nn

from helpers.backbones import fill
from mttl.skills import SparseAdapterInventory

I, O, K, F = 8, 12, 3, 20  # noqa: E741


def filled(**settings):
    inventory = SparseAdapterInventory(I, O, K, hidden_features=F, sparsity=0.7, **settings)
    fill(inventory)
    return inventory.double()


def masked(inventory, k):
    """A network of whole layers and the masks that multiply their weights, as in the release."""
    down, up = nn.Linear(I, F).double(), nn.Linear(F, O).double()
    masks = []
    for layer, name in ((down, "down"), (up, "up")):
        places = getattr(inventory, f"{name}_places")[k]
        mask = torch.zeros(layer.weight.numel(), dtype=torch.float64)
        mask[places] = 1
        masks.append(mask.view_as(layer.weight))
        with torch.no_grad():
            layer.weight.view(-1)[places] = getattr(inventory, name)[k]
            layer.bias.copy_(getattr(inventory, f"{name}_bias")[k])

    def run(x):
        hidden = torch.relu(x @ (down.weight * masks[0]).T + down.bias)
        return inventory.scale * (hidden @ (up.weight * masks[1]).T + up.bias)

    return run, down, up


def test_each_skill_is_a_masked_network_and_learns_as_one():
    torch.manual_seed(0)
    inventory = filled(scale=2.0)
    x = torch.randn(2, 5, I, dtype=torch.float64)
    y = torch.randn(2, 5, O, dtype=torch.float64)
    for k in range(K):
        inventory.zero_grad()
        weights = torch.eye(K, dtype=torch.float64)[[k, k]][:, None]
        found = inventory(x, y, weights)
        run, down, up = masked(inventory, k)
        expected = y + run(x)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        for layer, name in ((down, "down"), (up, "up")):
            places = getattr(inventory, f"{name}_places")[k]
            theirs = layer.weight.grad.flatten()
            torch.testing.assert_close(getattr(inventory, name).grad[k], theirs[places])
            assert theirs.count_nonzero() <= len(places)
            bias = getattr(inventory, f"{name}_bias").grad[k]
            torch.testing.assert_close(bias, layer.bias.grad)


def test_skills_keep_a_fraction_of_both_projections_each_its_own():
    inventory = SparseAdapterInventory(64, 64, K, hidden_features=256)
    for name in ("down", "up"):
        assert getattr(inventory, name).shape == (K, 64 * 256 // 4)
        places = getattr(inventory, f"{name}_places")
        assert not torch.equal(places[0], places[1])
    down, _, up, _ = inventory.projections()
    # Drawn as a whole layer is, and 0 elsewhere; the way up is 0 everywhere.
    assert down.abs().max() <= 64**-0.5
    assert (down != 0).float().mean().item() == pytest.approx(0.25, abs=1e-3)
    assert not up.any()
