"""Spherical interpolation and Model Stock against mergekit's results on the same tensors."""

import pytest
import torch

from mttl.aggregation.interpolation import slerp, stock_average

A = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]])
B = torch.tensor([[0.5, -1.0, 2.0], [1.0, -0.75, 0.25]])
C = torch.tensor([[1.5, -2.5, 0.0], [2.0, 1.0, -1.5]])
# Printed by mergekit 0.1.5 in single precision, which has seven digits.
SLERP = [[0.92931235, -1.8586247, 1.0674438], [2.615712, -0.069065735, -0.6709748]]
PARALLEL = [[1.00003, -2.00006, 0.500015], [3.00009, 0.2500075, -1.00003]]
STOCK = [[1.0, -2.1040945, 0.29181087], [3.6245675, 0.30204728, -1.1561419]]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (slerp(A, B, 0.3), SLERP),
        (slerp(A, 1.0001 * A, 0.3), PARALLEL),
        (stock_average(A, [B - A, C - A]), STOCK),
    ],
)
def test_the_result_is_mergekit_s(found, expected) -> None:
    torch.testing.assert_close(found, torch.tensor(expected))


def test_ends_and_limits() -> None:
    zero = torch.zeros_like(A)
    torch.testing.assert_close(slerp(A, B, 0.0), A)  # a division by the sine rounds
    torch.testing.assert_close(slerp(A, B, 1.0), B)
    assert torch.equal(slerp(A, zero, 0.25), 0.75 * A)
    torch.testing.assert_close(stock_average(A, [B, B]), A + B)  # equal vectors: their mean
    assert torch.equal(stock_average(A, [B, -B]), A)  # opposite vectors: the base
