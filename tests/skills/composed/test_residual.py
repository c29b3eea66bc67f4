"""Residual adapters against 1 × 1 convolutions of their own."""

import pytest
import torch
from torch.nn.functional import conv2d

from helpers.backbones import fill
from helpers.skills import mixing
from mttl.skills import KINDS

K, T = 3, 2


@pytest.mark.parametrize("kernel", [(3, 3), (1, 5)])
@pytest.mark.parametrize("series", [False, True])
def test_the_composed_weight_is_the_convolution_and_its_adapters(series, kernel):
    made = KINDS["residual"].of_tensor((4, 5, *kernel), K, series=series).double()
    weight, bias = torch.randn(4, 5, *kernel).double(), torch.randn(4).double()
    assert torch.equal(
        made.compose(weight, mixing(T, 1, K).double()), weight.expand(T, *weight.shape)
    )
    fill(made)
    weights, x = mixing(T, 1, K).double(), torch.randn(2, 5, 7, 7).double()
    padding = [size // 2 for size in kernel]
    plain = conv2d(x, weight, padding=padding)
    read = plain if series else x
    for found, own in zip(made.compose(weight, weights), weights[:, 0], strict=True):
        mixed = sum(w * matrix for w, matrix in zip(own, made.matrix, strict=True))
        expected = plain + conv2d(read, mixed[..., None, None]) + bias[:, None, None]
        # Double precision, sums of at most 25 products.
        torch.testing.assert_close(conv2d(x, found, bias, padding=padding), expected)
