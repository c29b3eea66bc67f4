"""Invertible adapters, beside those of AdapterHub."""

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from helpers.adapterhub import adapterhub
from helpers.compare import assert_same
from helpers.skills import filled, mixing
from mttl.skills.blocks.invertible import InvertibleInventory

B, L, K = 3, 4, 2
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # double precision, sums in another order


@pytest.mark.parametrize("size", [8, 9], ids="{} features".format)
@pytest.mark.parametrize(("activation", "reduction"), [("relu", 2.0), ("gelu", 3.0)])
def test_equal_to_adapterhub(size, activation, reduction):
    settings = {"activation": activation, "reduction": reduction}
    skills = filled(InvertibleInventory(40, size, K, **settings)).double()
    theirs = adapterhub().modeling.NICECouplingBlock(
        [[size]], non_linearity=activation, reduction_factor=reduction
    )
    y = torch.randn(B, L, size, dtype=torch.float64, requires_grad=True)
    merged = skills.merge(mixing(B, 1, K).double())
    parts = [f"{n}.{layer}.{name}" for n in "FG" for layer in "02" for name in ("weight", "bias")]
    found, leaves = skills.combine(torch.zeros(B, L, size), y, merged), [y, *skills.parameters()]
    for own, rev in ((found, False), (skills.inverse(y, merged), True)):
        expected = [
            functional_call(theirs, dict(zip(parts, values, strict=True)), (y[b : b + 1], [], rev))
            for b, values in enumerate(zip(*merged, strict=True))
        ]
        assert_same(own, torch.cat(expected), leaves, **ROUNDING)
    assert_close(skills.inverse(found, merged), y, **ROUNDING)


def test_fresh_adapters_change_nothing():
    skills, y = InvertibleInventory(40, 8, K), torch.randn(B, L, 8)
    merged = skills.merge(mixing(B, 1, K))
    assert torch.equal(skills.combine(y, y, merged), y)
    assert torch.equal(skills.inverse(y, merged), y)
