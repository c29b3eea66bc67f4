"""Factors of a mixture multiply to the mixture; truncation is as good as any can be."""

import pytest
import torch

from helpers.skills import filled, mixing
from mttl.merging.low_rank_factors import (
    LowRank,
    factorise,
    mixture,
    mixture_factors,
    relative_error,
    truncate,
)
from mttl.skills import DenseInventory, IA3Inventory, LoRAInventory

EXACT = {"rtol": 1e-12, "atol": 1e-12}  # double precision throughout


def product(part):
    return part.up @ part.down.t()


@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("mix", ["factors", "deltas", "outputs"])
def test_the_factors_multiply_to_the_change(mix, n_heads):
    inventory = filled(LoRAInventory(4, 6, 3, rank=2, n_heads=n_heads, mix=mix, scale=0.7)).double()
    weights = mixing(1, n_heads, 3)[0].double()
    for rank in (6, 4):
        part = mixture_factors(inventory, weights)
        assert part.rank == (2 if mix == "factors" else rank)
        torch.testing.assert_close(product(part), inventory.delta(weights[None])[0], **EXACT)
        weights[:, 2] = 0.0  # a skill without weight takes no columns


@pytest.mark.parametrize("rank", [1, 3, 4, 9])
def test_truncation_is_the_svd_of_the_product(rank):
    down, up = torch.randn(5, 4).double(), torch.randn(7, 4).double()
    left, values, right = torch.linalg.svd(up @ down.t(), full_matrices=False)
    expected = left[:, :rank] @ torch.diag(values)[:rank, :rank] @ right[:rank]
    for part in (truncate(down, up, rank), factorise(up @ down.t(), rank)):
        assert part.rank == min(rank, part.rank)
        torch.testing.assert_close(product(part), expected, **EXACT)
        assert part.dropped == pytest.approx(float((expected - up @ down.t()).norm()), abs=1e-12)
        assert part.norm == pytest.approx(float((up @ down.t()).norm()))


def test_the_error_is_that_of_all_layers_together():
    changes = [torch.randn(5, 4).double() for _ in range(3)]
    parts = [factorise(change, 2) for change in changes]
    dropped = sum(float((product(p) - c).norm() ** 2) for p, c in zip(parts, changes, strict=True))
    whole = sum(float(change.norm() ** 2) for change in changes)
    assert relative_error(parts) == pytest.approx((dropped / whole) ** 0.5)
    assert relative_error([LowRank(torch.zeros(3, 1), torch.zeros(3, 1))]) == 0


def test_a_mixture_is_exact_where_the_rank_allows_it():
    inventory = filled(LoRAInventory(8, 6, 3, rank=2, mix="deltas"))
    weights = mixing(1, 1, 3)[0]
    assert mixture(inventory, weights).dropped == 0
    assert mixture(inventory, weights, rank=6).rank == 6
    assert mixture(inventory, weights, rank=6).dropped == 0
    assert mixture(inventory, weights, rank=3).dropped > 0
    dense = filled(DenseInventory(8, 6, 3))
    whole = mixture(dense, weights, rank=6)
    torch.testing.assert_close(product(whole), dense.delta(weights[None])[0].detach())


def test_mistakes_are_named():
    weights = mixing(1, 1, 3)[0]
    with pytest.raises(ValueError, match="changes of DenseInventory are not low-rank"):
        mixture(DenseInventory(4, 6, 3), weights)
    with pytest.raises(NotImplementedError, match="does not add to the base weight"):
        mixture(IA3Inventory(4, 6, 3), weights, rank=2)
    with pytest.raises(ValueError, match=r"rank \(0\) must be at least 1"):
        mixture(LoRAInventory(4, 6, 3), weights, rank=0)
