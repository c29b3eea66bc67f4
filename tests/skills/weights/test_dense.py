import pytest
import torch

from helpers.skills import filled, mixing
from mttl.skills import DenseInventory


@pytest.mark.parametrize("mix", ["deltas", "outputs"])
def test_equals_a_loop_over_examples_skills_and_features(mix):
    inventory = filled(DenseInventory(4, 6, 3, n_heads=2, mix=mix)).double()
    x, y = torch.randn(5, 2, 4).double(), torch.randn(5, 2, 6).double()
    weights = mixing(5, 2, 3).double()
    found = inventory(x, y, weights)
    for b in range(5):
        for feature in range(6):
            head = feature // 3
            row = sum(weights[b, head, k] * inventory.change[k, feature] for k in range(3))
            torch.testing.assert_close(found[b, :, feature], y[b, :, feature] + x[b] @ row)


def test_the_two_mixings_agree():
    x, y, weights = torch.randn(5, 2, 4).double(), torch.randn(5, 2, 6).double(), mixing(5, 2, 3)
    deltas, outputs = (
        filled(DenseInventory(4, 6, 3, n_heads=2, mix=mix)).double()
        for mix in ("deltas", "outputs")
    )
    torch.testing.assert_close(deltas(x, y, weights.double()), outputs(x, y, weights.double()))
    torch.testing.assert_close(deltas.delta(weights.double()), outputs.delta(weights.double()))


def test_an_unknown_mixing_is_an_error():
    with pytest.raises(ValueError, match=r"mix \('factors'\) must be one of deltas, outputs"):
        DenseInventory(4, 6, 2, mix="factors")
