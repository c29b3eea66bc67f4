"""Comparison of tensors and of their gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a fraction of the largest expected value.

    Entry-wise tolerances judge a gradient by its smallest entries, which are sums of large terms
    that cancel; rounding is proportional to those terms.
    """
    assert found.shape == expected.shape
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


def assert_same(found: Tensor, expected: Tensor, by: Iterable[Tensor], **close: float) -> Tensor:
    """Compare tensors, and the gradients of both in a random direction, which is returned."""
    torch.testing.assert_close(found, expected, **close)
    direction, leaves = torch.randn_like(found), list(by)
    if not leaves:
        return direction
    ours, theirs = (
        torch.autograd.grad(made, leaves, direction, materialize_grads=True, retain_graph=True)
        for made in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, **close)
    return direction
