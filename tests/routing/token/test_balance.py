"""Balancing losses, by hand and against plain formulas."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mttl.routing import Balance, BiasBalance, NoisyTopKRouter
from mttl.routing.token.balance import (
    LoadSums,
    entropy_loss,
    gshard_loss,
    load_sums,
    squared_variation,
    switch_loss,
    z_loss,
)
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.top_k import top_choice

E = 4


def test_by_hand() -> None:
    """Four tokens, two experts; three tokens go to the first."""
    sums = LoadSums(
        tokens=torch.tensor(4.0),
        pairs=torch.tensor([3.0, 1.0]),
        first=torch.tensor([2.0, 2.0]),
        probabilities=torch.tensor([2.4, 1.6]),
        gates=torch.tensor([3.0, 1.0]),
        load=torch.tensor([3.0, 1.0]),
        squared_z=torch.tensor(10.0),
    )
    assert float(switch_loss(sums)) == pytest.approx(2 * (0.75 * 0.6 + 0.25 * 0.4))
    assert float(gshard_loss(sums)) == pytest.approx(2 * (0.5 * 0.6 + 0.5 * 0.4))
    assert float(squared_variation(sums.gates)) == pytest.approx(1 / 4)  # variance 1, mean 2
    assert float(z_loss(sums)) == pytest.approx(2.5)
    entropy = -0.6 * math.log(0.6) - 0.4 * math.log(0.4)
    assert float(entropy_loss(sums)) == pytest.approx(math.log(2) - entropy)


def test_the_localised_loss_is_that_of_the_released_code() -> None:
    """A loop over examples and experts, with the tokens of four examples in two groups."""
    found = choice()
    examples = torch.arange(30) // 9 * 2  # numbers of rows that are left
    own = (torch.arange(E) < 2) == (examples % 4 == 0)[:, None]
    balance = Balance(localised=0.7, delta=0.2)
    loss = balance(found, Tokens(torch.zeros(30, 1), examples=examples, own=own))["localised"]
    p, values = found.probabilities.detach().numpy(), []
    for example in np.unique(examples):
        rows = np.flatnonzero(examples == example)
        for expert in range(E):
            values.append(p[rows, expert].sum() * (1.2 if own[rows[0], expert] else 0.8))
    assert loss.item() == pytest.approx(0.7 * np.var(values) / np.mean(values) ** 2, rel=1e-5)
    loss.backward()


def choice(n: int = 30, top_k: int = 2) -> Assignment:
    logits = (3 * torch.randn(n, E)).requires_grad_()
    return top_choice(logits, logits.topk(top_k).indices, normalise=True)


def test_against_numpy_and_scipy() -> None:
    given = choice()
    with torch.no_grad():
        sums = load_sums(given)
    p = given.probabilities.detach().double().numpy()
    shares = np.bincount(given.experts.numpy(), minlength=E) / len(given.experts)
    assert float(switch_loss(sums)) == pytest.approx(E * (shares * p.mean(0)).sum(), rel=1e-5)
    first = np.bincount(p.argmax(1), minlength=E) / len(p)
    # The paper's formula, (1 / E) Σ (c / S) m, times E².
    paper = (first * p.mean(0)).sum() / E
    assert float(gshard_loss(sums)) == pytest.approx(E**2 * paper, rel=1e-5)
    gates = np.zeros((len(p), E))
    gates[given.tokens, given.experts] = given.weights.detach()
    variation = stats.variation(gates.sum(0)) ** 2
    assert float(squared_variation(sums.gates)) == pytest.approx(variation, rel=1e-5)
    usage = stats.entropy(p.mean(0), np.full(E, 1 / E))  # Kullback-Leibler divergence
    assert float(entropy_loss(sums)) == pytest.approx(usage, rel=1e-4)
    z = np.log(np.exp(given.logits.detach().double().numpy()).sum(1))
    assert float(z_loss(sums)) == pytest.approx((z**2).mean(), rel=1e-5)


@pytest.mark.parametrize("name", ["switch", "gshard", "importance", "z", "entropy"])
def test_coefficients_multiply_and_gradients_flow(name: str) -> None:
    given = choice()
    one = Balance(**{name: 1.0})(given)
    assert set(one) == {name}
    assert torch.equal(Balance(**{name: 1.0}, global_statistics=True)(given)[name], one[name])
    half = Balance(**{name: 0.5})(given)
    torch.testing.assert_close(half[name], 0.5 * one[name])
    gradient = torch.autograd.grad(one[name], given.logits)[0]
    assert gradient.any()


def test_a_coefficient_is_a_known_one_and_not_negative() -> None:
    with pytest.raises(ValueError, match=r"switch .* must be at least 0"):
        Balance(switch=-1.0)
    with pytest.raises(TypeError, match="gshart"):
        Balance(gshart=1.0)  # type: ignore[call-arg]


def test_no_losses_and_no_tokens() -> None:
    assert Balance(switch=0.0)(choice()) == {}
    everything = Balance(switch=1.0, gshard=1.0, importance=1.0, load=1.0, z=1.0, entropy=1.0)
    losses = everything(top_choice(torch.zeros(0, E), torch.zeros(0, 2).long(), normalise=True))
    assert len(losses) == 6
    assert all(float(loss) == 0 for loss in losses.values())


def test_the_bias_follows_the_load() -> None:
    bias = BiasBalance(E, rate=0.5)
    bias.adjust(torch.tensor([10, 0, 5, 5]))
    assert bias.value.tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert "value" in bias.state_dict()
    bias.reset_parameters()
    assert not bias.value.any()


def test_the_noisy_routers_load_is_its_own() -> None:
    router = NoisyTopKRouter(6, E, balance=Balance(load=1.0))
    found = router(Tokens(torch.randn(50, 6))).losses["load"].detach()
    assert 0 <= float(found) < 1  # noise alone decides: nearly even
