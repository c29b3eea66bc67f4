"""Bias skills, beside the biases of plain layers."""

import pytest
import torch

from helpers.skills import filled, mixing
from mttl.skills import BitFitInventory


def test_a_layer_without_a_bias_cannot_be_folded():
    inventory = filled(BitFitInventory(4, 6, 3))
    weights = mixing(1, 1, 3)[0]
    with pytest.raises(NotImplementedError, match="the layer has no bias"):
        inventory.fold(torch.randn(6, 4), None, weights)
    weight, bias = torch.randn(6, 4), torch.randn(6)
    same, moved = inventory.fold(weight, bias, weights)
    assert same is weight
    torch.testing.assert_close(moved, bias + weights[0] @ inventory.bias)
