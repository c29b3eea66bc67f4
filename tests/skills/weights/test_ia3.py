import torch

from helpers.skills import filled, mixing
from mttl.skills import IA3Inventory


def test_equals_a_loop_over_examples_and_features():
    inventory = filled(IA3Inventory(4, 6, 3, n_heads=2)).double()
    x, y = torch.randn(5, 2, 4).double(), torch.randn(5, 2, 6).double()
    weights = mixing(5, 2, 3).double()
    found = inventory(x, y, weights)
    for b in range(5):
        for feature in range(6):
            head = feature // 3
            # Weights that sum to 1 mix the scales 1 + d themselves.
            scale = sum(
                weights[b, head, k] * (1 + inventory.difference[k, feature]) for k in range(3)
            )
            torch.testing.assert_close(found[b, :, feature], y[b, :, feature] * scale)


def test_weights_that_sum_to_zero_leave_the_output_as_it_is():
    inventory = filled(IA3Inventory(4, 6, 3))
    y = torch.randn(2, 3, 6)
    assert torch.equal(inventory(torch.randn(2, 3, 4), y, torch.zeros(2, 1, 3)), y)
