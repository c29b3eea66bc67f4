"""Comparison of tensors whose entries differ in size by orders of magnitude."""

from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a fraction of the largest expected value.

    Entry-wise tolerances judge a gradient by its smallest entries, which are sums of large terms
    that cancel; rounding is proportional to those terms.
    """
    assert found.shape == expected.shape
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())
