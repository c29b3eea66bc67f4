"""Kronecker skills beside blocks, against plain products and against KronA on the block's input."""

import pytest
import torch

from helpers.skills import filled, mixing
from mttl.skills import KronABlockInventory

B, L, K = 5, 2, 3


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", [(2, 4), (12, 1), (1, 12)])
def test_equals_a_plain_kronecker_product_and_a_share(
    residual: bool, shape: tuple[int, int]
) -> None:
    inventory = filled(
        KronABlockInventory(12, 12, K, shape=shape, scale=0.5, residual=residual)
    ).double()
    x, y = torch.randn(B, L, 12).double(), torch.randn(B, L, 12).double()
    weights = mixing(B, 1, K).double()
    found = inventory(x, y, weights)
    parts = inventory.product.left, inventory.product.right
    for b in range(B):
        w = weights[b, 0]
        left, right = (torch.einsum("k,koi->oi", w, f) for f in parts)
        change = 0.5 * torch.kron(left, right)
        if residual:
            change = change + (w @ inventory.residual) * torch.eye(12)
        torch.testing.assert_close(found[b], y[b] + x[b] @ change.T)
