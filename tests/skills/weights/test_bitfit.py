"""Bias skills, beside the biases of plain layers."""

import pytest
import torch
from torch import nn

from helpers.skills import filled, mixing
from mttl.skills import BitFitInventory


def test_one_skill_is_the_bias_itself():
    """Outputs and gradients are those of a layer whose bias is trained."""
    base, inventory = nn.Linear(4, 6).double(), BitFitInventory(4, 6, 1).double()
    x, weights = torch.randn(2, 3, 4).double(), torch.ones(2, 1, 1).double()
    inventory.combine_linear(x, base, inventory.merge(weights)).square().sum().backward()
    base(x).square().sum().backward()
    # Both passes added to the gradient of the layer's own bias.
    torch.testing.assert_close(2 * inventory.bias.grad[0], base.bias.grad)


def test_a_layer_without_a_bias_cannot_be_folded():
    inventory = filled(BitFitInventory(4, 6, 3))
    weights = mixing(1, 1, 3)[0]
    with pytest.raises(NotImplementedError, match="the layer has no bias"):
        inventory.fold(torch.randn(6, 4), None, weights)
    weight, bias = torch.randn(6, 4), torch.randn(6)
    same, moved = inventory.fold(weight, bias, weights)
    assert same is weight
    torch.testing.assert_close(moved, bias + weights[0] @ inventory.bias)
