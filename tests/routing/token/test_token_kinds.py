"""What each kind of token router promises."""

import math

import pytest
import torch

from mttl.routing import (
    BaseRouter,
    BiasBalance,
    ExampleRouter,
    ExpertChoiceRouter,
    GShardRouter,
    HashRouter,
    NoisyTopKRouter,
    Tokens,
    TopKRouter,
)
from mttl.routing.token.top_k import expected_load

I, E, N = 6, 4, 40  # noqa: E741


def dense(found, n: int = N) -> torch.Tensor:
    gates = torch.zeros(n, E)
    gates[found.tokens, found.experts] = found.weights.detach()
    return gates


@pytest.mark.parametrize("normalise", [True, False])
def test_gates_of_the_best_k(normalise: bool) -> None:
    router = TopKRouter(I, E, top_k=3, normalise=normalise, init_scale=5.0)
    x = torch.randn(N, I)
    found = router(Tokens(x))
    p = torch.softmax(x @ router.weight.t(), -1)
    expected = p * (p >= p.topk(3).values[:, -1:])
    if normalise:
        expected = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(dense(found), expected.detach())
    assert torch.equal(found.tokens, torch.arange(N).repeat(3))
    assert torch.equal(found.experts[:N], p.argmax(-1))


def test_jitter_blurs_the_routers_input_in_training() -> None:
    router = TopKRouter(I, E, jitter=0.5)
    x, router.weight.data = torch.ones(N, I), torch.eye(E, I)
    logits = router(Tokens(x)).probabilities.log()  # but for a constant, the factors
    spread = logits.amax(1) - logits.amin(1)
    assert 0.5 < spread.max() <= 1.0 + 1e-5
    assert torch.equal(router.eval()(Tokens(x)).probabilities, torch.full((N, E), 1 / E))


def test_a_bias_chooses_and_does_not_weigh() -> None:
    router = TopKRouter(I, E, bias=BiasBalance(E, rate=0.1))
    x = torch.randn(N, I)
    before = router(Tokens(x))
    router.bias.value.copy_(torch.tensor([0.0, 0.0, 2.0, 0.0]))
    after = router(Tokens(x))
    assert int(after.counts()[2]) == N
    assert torch.equal(before.probabilities, after.probabilities)
    p = after.probabilities
    other = dense(after) > 0
    expected = p * other / (p * other).sum(1, keepdim=True)
    torch.testing.assert_close(dense(after), expected.detach())
    # A forbidden expert stays forbidden.
    prior = torch.zeros(N, E)
    prior[:, 2] = -torch.inf
    assert int(router(Tokens(x, prior=prior)).counts()[2]) == 0


def test_noise_explores_in_training_only() -> None:
    router = NoisyTopKRouter(I, E)
    x = torch.randn(N, I)
    assert not torch.equal(router(Tokens(x)).experts, router(Tokens(x)).experts)
    torch.nn.init.normal_(router.weight)
    router.eval()
    found = router(Tokens(x))
    assert torch.equal(found.experts[:N], (x @ router.weight.t()).argmax(-1))
    torch.testing.assert_close(dense(found).sum(1), torch.ones(N))


def test_the_expected_load_is_the_chance_to_be_chosen_under_new_noise() -> None:
    clean, deviation = torch.randn(1, E), 0.2 + torch.rand(1, E)
    noisy = clean + torch.randn(1, E) * deviation
    found = expected_load(clean, noisy, deviation, top_k=2)
    n = 20_000
    for e in range(E):
        drawn = noisy.repeat(n, 1)
        drawn[:, e] = clean[0, e] + torch.randn(n) * deviation[0, e]
        chosen = (drawn.topk(2, -1).indices == e).any(-1).float().mean()
        # Four standard errors of 20,000 draws.
        assert abs(float(chosen - found[0, e])) < 4 * 0.5 / math.sqrt(n)


def test_the_second_expert_comes_by_chance() -> None:
    router = GShardRouter(I, E, threshold=0.4)
    torch.nn.init.normal_(router.weight)
    x = torch.randn(N, I)
    full = TopKRouter(I, E, top_k=2)
    full.weight = router.weight
    gates = full(Tokens(x)).weights[N:].detach()
    kept = torch.zeros(N)
    draws = 400
    for _ in range(draws):
        found = router(Tokens(x))
        assert torch.equal(found.tokens[:N], torch.arange(N))
        kept[found.tokens[N:]] += 1
    expected = (gates / 0.4).clamp(max=1.0)
    assert (kept[expected == 1] == draws).all()
    # Five standard errors.
    assert ((kept / draws - expected).abs() < 5 * 0.5 / math.sqrt(draws)).all()
    router.eval()
    assert set(router(Tokens(x)).tokens[N:].tolist()) == set(
        (gates > 0.4).nonzero().flatten().tolist()
    )


@pytest.mark.parametrize(
    ("capacity", "n_taken"), [(1.0, 10), (2.0, 20), (4.0, 40), (0.51, 6), (1.1, 11)]
)
def test_experts_fill_themselves_exactly(capacity: float, n_taken: int) -> None:
    router = ExpertChoiceRouter(I, E, capacity=capacity)
    x = torch.randn(N, I)
    found = router(Tokens(x))
    assert found.counts().tolist() == [n_taken] * E
    for e in range(E):
        mine = found.tokens[found.experts == e]
        p = found.probabilities[:, e]
        assert set(mine.tolist()) == set(p.topk(n_taken).indices.tolist())
    torch.testing.assert_close(found.weights, found.probabilities[found.tokens, found.experts])


def test_base_deals_tokens_out_evenly_in_training() -> None:
    router = BaseRouter(I, E)
    x = torch.randn(N, I) + 3  # all like the same experts
    assert router(Tokens(x)).counts().tolist() == [N // E] * E
    assert sorted(router(Tokens(x[:-2])).counts().tolist()) == [9, 9, 10, 10]
    router.eval()
    found = router(Tokens(x))
    scores = x @ router.weight.t()
    assert torch.equal(found.experts, scores.argmax(-1))
    torch.testing.assert_close(found.weights, torch.sigmoid(scores.amax(-1)))
    assert found.counts().max() > N // E


def test_base_refuses_a_prior_that_forbids() -> None:
    prior = torch.zeros(N, E)
    prior[0, 0] = -torch.inf
    router = BaseRouter(I, E)
    with pytest.raises(ValueError, match="scores must be finite"):
        router(Tokens(torch.randn(N, I), prior=prior))
    router(Tokens(torch.randn(N, I), prior=torch.randn(N, E)))
    assert 0 not in router.eval()(Tokens(torch.randn(N, I), prior=prior)).experts[:1].tolist()


def test_hashing_is_fixed_and_even_and_takes_no_prior() -> None:
    router = HashRouter(I, E, vocabulary_size=10, seed=1)
    ids = torch.arange(10)
    found = router(Tokens(torch.randn(10, I), ids=ids))
    assert sorted(found.counts().tolist()) == [2, 2, 3, 3]
    assert torch.equal(found.experts, router(Tokens(torch.randn(10, I), ids=ids)).experts)
    assert torch.equal(found.experts, HashRouter(I, E, vocabulary_size=10, seed=1).table)
    assert not torch.equal(found.experts, HashRouter(I, E, vocabulary_size=10, seed=2).table)
    assert (found.weights == 1).all()
    with pytest.raises(ValueError, match="no logits, so it cannot use a prior"):
        router(Tokens(torch.randn(10, I), ids=ids, prior=torch.zeros(10, E)))


def test_an_example_is_routed_by_its_mean() -> None:
    router = ExampleRouter(I, E, init_scale=5.0)
    x, examples = torch.randn(12, I), torch.tensor([3, 3, 3, 0, 0, 7, 7, 7, 7, 7, 0, 0])
    found = router(Tokens(x, examples=examples))
    means = torch.stack([x[examples == e].mean(0) for e in examples.tolist()])
    simple = TopKRouter(I, E)
    simple.weight = router.weight
    torch.testing.assert_close(dense(found, 12), dense(simple(Tokens(means)), 12))
    torch.testing.assert_close(found.probabilities, simple(Tokens(means)).probabilities)
    # All first choices before all second ones.
    first = (
        found.probabilities[found.tokens, found.experts]
        == found.probabilities.amax(1)[found.tokens]
    )
    assert first.tolist() == [True] * 12 + [False] * 12
