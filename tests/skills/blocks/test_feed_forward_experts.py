"""Feed-forward blocks that tokens choose, against a plain loop over pairs."""

import pytest
import torch

from helpers.compare import assert_same, relative_error
from helpers.pairs import ASSIGNMENTS, E, N, feed_forward, loop_over_pairs, random_pairs
from mttl.moe import FeedForwardExperts

I, O = 16, 16  # noqa: E741
KINDS = {
    "relu": {},
    "gelu, bias": {"activation": "gelu", "bias": True},
    "gelu_new, gated": {"activation": "gelu_new", "gated": True},
    "silu, gated, bias": {"activation": "silu", "gated": True, "bias": True},
    "a function": {"activation": torch.tanh},
}


def make(**settings) -> FeedForwardExperts:
    experts = FeedForwardExperts(I, 8, O, E, **settings)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return experts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_equals_a_loop_over_pairs_with_gradients(kind: str, name: str) -> None:
    experts, given = make(**KINDS[kind]).double(), ASSIGNMENTS[name]()
    x = torch.randn(len(given.probabilities), I).double().requires_grad_()
    given.weights.requires_grad_()
    leaves = [x, given.weights, *experts.parameters()]
    found = experts.dispatch(x, given)
    expected = loop_over_pairs(lambda row, e: feed_forward(experts, row, e), x, given, O)
    assert_same(found, expected, leaves if len(x) else [])


def test_dropout_of_hidden_units_in_training_only() -> None:
    experts, given = FeedForwardExperts(I, 64, O, E, dropout=0.5), random_pairs()
    x = torch.randn(N, I)
    experts.eval()
    plain = experts.dispatch(x, given)
    assert torch.equal(plain, experts.dispatch(x, given))
    experts.train()
    assert not torch.equal(experts.dispatch(x, given), plain)
    mean = torch.stack([experts.dispatch(x, given) for _ in range(200)]).mean(0)
    assert relative_error(mean, plain) < 0.5  # 64 units, 200 draws
