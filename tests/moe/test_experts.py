"""Every kind of expert against a plain loop over pairs, for random and degenerate assignments."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.compare import relative_error
from mttl.moe import AdapterExperts, Experts, FeedForwardExperts, IA3Experts, LoRAExperts
from mttl.routing.token.choice import Assignment

N, E, I, O = 12, 4, 16, 16  # noqa: E741
# Float32 sums of a few dozen products, in another order.
ROUNDING = 1e-5


def ones(experts: list[int]) -> Assignment:
    """One pair per token."""
    n = len(experts)
    return Assignment(
        torch.arange(n), torch.tensor(experts, dtype=torch.long), torch.rand(n), torch.zeros(n, E)
    )


def random_pairs() -> Assignment:
    tokens, experts = (torch.rand(N, E) < 0.5).nonzero(as_tuple=True)
    order = torch.randperm(len(tokens))
    return Assignment(tokens[order], experts[order], torch.rand(len(order)), torch.zeros(N, E))


ASSIGNMENTS: dict[str, Callable[[], Assignment]] = {
    "random": random_pairs,
    "all to one": lambda: ones([2] * N),
    "one without": lambda: ones([0, 1, 3] * (N // 3)),
    "one token": lambda: ones([1]),
    "no token": lambda: ones([]),
}


def feed_forward(experts: FeedForwardExperts, x: Tensor, e: int) -> Tensor:
    """One expert's block, by the formula."""
    hidden = x @ experts.up[e].t()
    if experts.up_bias is not None:
        hidden = hidden + experts.up_bias[e]
    if experts.gated:
        half = experts.hidden_features
        hidden = experts.activation(hidden[:half]) * hidden[half:]
    else:
        hidden = experts.activation(hidden)
    y = hidden @ experts.down[e].t()
    return y if experts.down_bias is None else y + experts.down_bias[e]


KINDS: dict[str, tuple[Callable[[], Experts], Callable[[Experts, Tensor, int], Tensor]]] = {
    "relu": (lambda: FeedForwardExperts(I, 8, O, E), feed_forward),
    "gelu, bias": (
        lambda: FeedForwardExperts(I, 8, O, E, activation="gelu", bias=True),
        feed_forward,
    ),
    "gelu_new, gated": (
        lambda: FeedForwardExperts(I, 8, O, E, activation="gelu_new", gated=True),
        feed_forward,
    ),
    "silu, gated, bias": (
        lambda: FeedForwardExperts(I, 8, O, E, activation="silu", gated=True, bias=True),
        feed_forward,
    ),
    "a function": (lambda: FeedForwardExperts(I, 8, O, E, activation=torch.tanh), feed_forward),
    "lora, all at once": (
        lambda: LoRAExperts(I, O, E, rank=4),
        lambda m, x, e: m.scale * (x @ m.down[e]) @ m.up[e].t(),
    ),
    "lora, by expert": (
        lambda: LoRAExperts(I, O, E, rank=5, scale=0.3),
        lambda m, x, e: m.scale * (x @ m.down[e]) @ m.up[e].t(),
    ),
    "ia3": (lambda: IA3Experts(I, O, E), lambda m, x, e: x * m.difference[e]),
    "adapter": (
        lambda: AdapterExperts(I, O, E, hidden_features=3),
        lambda m, x, e: feed_forward(m.blocks, x, e),
    ),
}


def randomise(experts: Experts) -> Experts:
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return experts


def loop(experts: Experts, one: Callable, x: Tensor, given: Assignment) -> Tensor:
    rows = [torch.zeros(O) for _ in x]
    for token, expert, weight in zip(given.tokens, given.experts, given.weights, strict=True):
        rows[token] = rows[token] + weight * one(experts, x[token], int(expert))
    return torch.stack(rows) if rows else torch.zeros(0, O)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_equals_a_loop_over_pairs_with_gradients(kind: str, name: str) -> None:
    make, one = KINDS[kind]
    experts, given = randomise(make()), ASSIGNMENTS[name]()
    x = torch.randn(len(given.probabilities), I, requires_grad=True)
    given.weights.requires_grad_()
    leaves = [x, given.weights, *experts.parameters()]
    found, expected = experts(x, given), loop(experts, one, x, given)
    torch.testing.assert_close(found, expected, atol=ROUNDING, rtol=1e-4)
    if not len(x):
        return
    grad = torch.randn_like(found)
    one_side = torch.autograd.grad(found, leaves, grad)
    other = torch.autograd.grad(expected, leaves, grad, allow_unused=True)
    for ours, reference in zip(one_side, other, strict=True):
        reference = torch.zeros_like(ours) if reference is None else reference
        torch.testing.assert_close(ours, reference, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LoRAExperts(I, O, E),
        lambda: IA3Experts(I, O, E),
        lambda: AdapterExperts(I, O, E),
        lambda: AdapterExperts(I, O, E, parallel=False),
    ],
)
def test_fresh_experts_that_augment_change_nothing(make: Callable[[], Experts]) -> None:
    experts = make()
    x, given = torch.randn(N, I), random_pairs()
    assert not experts(x, given).any()
    randomise(experts)
    assert experts(x, given).any()
    experts.reset_parameters()
    assert not experts(x, given).any()


def test_what_experts_read() -> None:
    assert FeedForwardExperts(I, 8, O, E).reads == LoRAExperts(I, O, E).reads == "input"
    assert IA3Experts(I, O, E).reads == "output"
    assert AdapterExperts(I, 6, E).reads == "input"
    behind = AdapterExperts(I, 6, E, parallel=False)
    assert behind.reads == "output"
    assert behind.blocks.in_features == 6


def test_dropout_of_hidden_units_in_training_only() -> None:
    experts, given = FeedForwardExperts(I, 64, O, E, dropout=0.5), random_pairs()
    x = torch.randn(N, I)
    experts.eval()
    plain = experts(x, given)
    assert torch.equal(plain, experts(x, given))
    experts.train()
    assert not torch.equal(experts(x, given), plain)
    mean = torch.stack([experts(x, given) for _ in range(200)]).mean(0)
    assert relative_error(mean, plain) < 0.5  # 64 units, 200 draws


def test_the_order_of_pairs_does_not_matter() -> None:
    experts, given = randomise(FeedForwardExperts(I, 8, O, E)), random_pairs()
    order = torch.randperm(len(given.tokens))
    shuffled = Assignment(
        given.tokens[order], given.experts[order], given.weights[order], given.probabilities
    )
    x = torch.randn(N, I)
    assert relative_error(experts(x, shuffled), experts(x, given)) < ROUNDING


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LoRAExperts(0, O, E), r"in_features \(0\) must be at least 1"),
        (lambda: IA3Experts(I, O, 0), r"n_experts \(0\) must be at least 1"),
        (lambda: LoRAExperts(I, O, E, rank=0), r"rank \(0\) must be at least 1"),
        (lambda: FeedForwardExperts(I, 0, O, E), r"hidden_features \(0\) must be at least 1"),
        (
            lambda: FeedForwardExperts(I, 8, O, E, activation="swish"),
            r"activation \('swish'\) must be relu, gelu",
        ),
        (
            lambda: FeedForwardExperts(I, 8, O, E, dropout=1.0),
            r"dropout \(1.0\) must lie in \[0, 1\)",
        ),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], Experts], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_sizes_are_shown() -> None:
    assert "n_experts=4" in repr(LoRAExperts(I, O, E))
