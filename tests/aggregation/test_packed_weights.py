"""Packed weights beside the same weights unpacked."""

import pytest
import torch
from torch import nn

from helpers.backbones import fill
from helpers.compare import relative_error
from helpers.quantised import KINDS, ROUNDING, dense_copy, packed_linear, require
from mttl.aggregation.packed_weights import (
    dense_weight,
    is_packed,
    keep_format,
    packed_layers,
    stored,
)
from mttl.checkpoints.model_tensors import fingerprint

I, O, N = 64, 96, 5  # noqa: E741
# How far a normal weight moves: half a step of 16 (15 even, or 16 at quantiles) or 255 levels.
LOST = {"nf4": 0.12, "int8": 0.01, "int4": 0.12}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unpacked_weight_is_near_the_one_that_was_packed(kind: str) -> None:
    plain = nn.Linear(I, O)
    fill(plain)
    layer = packed_linear(kind, I, O)
    found = dense_weight(layer)
    assert found.dtype == torch.float32
    error = (found - plain.weight).norm() / plain.weight.norm()
    assert 0 < error < LOST[kind]
    assert is_packed(layer.weight)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_the_unpacked_weight(kind: str, bias: bool) -> None:
    layer = packed_linear(kind, I, O, bias=bias)
    plain = dense_copy(layer)
    x = torch.randn(2, N, I, requires_grad=True)
    y, expected = layer(x), plain(x)
    assert relative_error(y, expected) < ROUNDING
    out = torch.randn_like(y)
    (found,), (wanted,) = (torch.autograd.grad(one, x, out) for one in (y, expected))
    assert relative_error(found, wanted) < ROUNDING


def test_a_repacked_weight_is_refused() -> None:
    layer = packed_linear("nf4", I, O)
    from bitsandbytes.functional import _convert_weight_packed_for_cpu

    layer.weight.data, _ = _convert_weight_packed_for_cpu(
        layer.weight.data,
        layer.weight.quant_state,  # type: ignore[attr-defined]
    )
    with pytest.raises(ValueError, match=r"repacked a 4-bit weight .* call keep_format"):
        dense_weight(layer)


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprints_tell_weights_apart(kind: str) -> None:
    one, other = (packed_linear(kind, I, O, bias=False) for _ in range(2))
    marks = [fingerprint(dict(m.named_parameters()), values=True) for m in (one, other)]
    assert marks[0] == marks[1]
    shape, scales = stored(one.weight)
    assert shape == (O, I)
    assert scales.is_floating_point()
    scales.mul_(1.5)
    assert fingerprint(dict(one.named_parameters()), values=True) != marks[1]


def test_eight_bits_of_bitsandbytes() -> None:
    """Folders that were saved so are loaded so; in training products are those of the weight."""
    require("nf4")
    from bitsandbytes.nn import Linear8bitLt

    plain = nn.Linear(I, O)
    fill(plain)
    layer = Linear8bitLt(I, O, has_fp16_weights=False)
    layer.load_state_dict(plain.state_dict())
    layer = layer.to("cpu").requires_grad_(False)
    x = torch.randn(N, I, requires_grad=True)
    unpacked = dense_weight(layer)
    assert relative_error(unpacked, plain.weight) < LOST["int8"]
    mark = fingerprint(dict(layer.named_parameters()), values=True)
    y = layer.train()(x)
    assert relative_error(y, nn.functional.linear(x, unpacked, layer.bias)) < ROUNDING
    assert torch.equal(dense_weight(layer), unpacked)  # the scales have moved
    assert fingerprint(dict(layer.named_parameters()), values=True) == mark


def test_plain_layers_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    inner = model[0]
    keep_format(model)
    assert model[0] is inner
    assert packed_layers(model) == {}
    assert dense_weight(inner) is inner.weight
    assert stored(inner.weight)[1] is inner.weight
