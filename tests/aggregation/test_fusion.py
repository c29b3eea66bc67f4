"""Attention over skills equals the published equation, written as a loop."""

import pytest
import torch

from mttl.skills.attention import FusionAttention


def filled(**settings):
    attention = FusionAttention(5, 6, **settings)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return attention.double()


@pytest.mark.parametrize("key_size", [None, 3])
def test_weights_are_attention_over_outputs(key_size):
    attention = filled(key_size=key_size)
    features, x = torch.randn(2, 4, 5).double(), torch.randn(2, 4, 7).double()
    down, up = torch.randn(3, 7, 2).double(), torch.randn(3, 6, 2).double()
    hidden = torch.einsum("bli,kir->blkr", x, down)
    found = attention(features, hidden, attention.directions(0.7 * up))
    for b in range(2):
        for position in range(4):
            query = attention.query @ features[b, position] + attention.query_bias
            outputs = [0.7 * up[k] @ down[k].t() @ x[b, position] for k in range(3)]
            scores = torch.stack([query @ (attention.key @ output) for output in outputs])
            torch.testing.assert_close(found[b, position], scores.softmax(0))


def test_the_value_matrix_starts_as_the_identity():
    attention = FusionAttention(5, 6)
    mixture = torch.randn(2, 4, 6)
    assert torch.equal(attention.values(mixture), mixture)
    assert attention.value_distance() == 0
    attention = filled()
    matrix = torch.eye(6).double() + attention.value_change
    mixture = mixture.double()
    torch.testing.assert_close(attention.values(mixture), mixture @ matrix.t())
    expected = (matrix - torch.eye(6)).square().sum()
    torch.testing.assert_close(attention.value_distance(), expected)


def test_without_a_value_matrix_the_mixture_stays():
    attention = FusionAttention(5, 6, value=False)
    mixture = torch.randn(2, 4, 6)
    assert attention.values(mixture) is mixture
    assert len(list(attention.parameters())) == 3
