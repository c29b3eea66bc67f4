"""Kronecker skills, beside plain products and PEFT's LoKr."""

import pytest
import torch
from torch import nn

from helpers.skills import filled, mixing
from mttl.skills import KronABlockInventory, KronAInventory


@pytest.mark.parametrize("mix", ["factors", "deltas"])
@pytest.mark.parametrize("shape", [(2, 4), (12, 1), (1, 8)])
def test_equals_plain_kronecker_products(mix: str, shape: tuple[int, int]) -> None:
    inventory = filled(KronAInventory(8, 12, 3, shape=shape, scale=0.5, mix=mix)).double()
    x, y = torch.randn(5, 2, 8).double(), torch.randn(5, 2, 12).double()
    weights = mixing(5, 1, 3).double()
    found = inventory(x, y, weights)
    for b in range(5):
        w = weights[b, 0]
        if mix == "factors":
            left, right = torch.einsum("k,koi->oi", w, inventory.left), inventory.right
            change = 0.5 * torch.kron(left, torch.einsum("k,koi->oi", w, right))
        else:
            pairs = zip(w, inventory.left, inventory.right, strict=True)
            change = sum(0.5 * value * torch.kron(a, c) for value, a, c in pairs)
        torch.testing.assert_close(found[b], y[b] + x[b] @ change.t())
        torch.testing.assert_close(inventory.delta(weights[b : b + 1])[0], change)


def test_one_skill_is_lokr_of_peft() -> None:
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(8, 12))
    # A rank above the sizes of the right factor keeps it whole.
    config = peft.LoKrConfig(r=64, alpha=64, target_modules=["0"], init_weights=False)
    theirs = peft.get_peft_model(base, config)
    layer = theirs.base_model.model[0]
    left, right = layer.lokr_w1["default"], layer.lokr_w2["default"]
    ours = KronAInventory(8, 12, 1, shape=left.shape)
    with torch.no_grad():
        ours.left.copy_(left[None])
        ours.right.copy_(right[None])
    x = torch.randn(3, 5, 8)
    weights = torch.ones(3, 1, 1)
    found = ours.combine_linear(x, layer.base_layer, ours.merge(weights))
    torch.testing.assert_close(found, theirs(x))
    found.square().sum().backward()
    gradient = ours.left.grad[0], ours.right.grad[0]
    theirs(x).square().sum().backward()
    torch.testing.assert_close(gradient, (left.grad, right.grad))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", [(2, 4), (12, 1), (1, 12)])
def test_equals_a_plain_kronecker_product_and_a_share(
    residual: bool, shape: tuple[int, int]
) -> None:
    inventory = filled(
        KronABlockInventory(12, 12, 3, shape=shape, scale=0.5, residual=residual)
    ).double()
    x, y = torch.randn(5, 2, 12).double(), torch.randn(5, 2, 12).double()
    weights = mixing(5, 1, 3).double()
    found = inventory(x, y, weights)
    parts = inventory.product.left, inventory.product.right
    for b in range(5):
        w = weights[b, 0]
        left, right = (torch.einsum("k,koi->oi", w, f) for f in parts)
        change = 0.5 * torch.kron(left, right)
        if residual:
            change = change + (w @ inventory.residual) * torch.eye(12)
        torch.testing.assert_close(found[b], y[b] + x[b] @ change.T)
