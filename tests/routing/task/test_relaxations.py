import pytest
import torch
from scipy.stats import kstest
from torch.distributions import RelaxedBernoulli

from mttl.routing.task.polytropon import relaxed_bernoulli
from mttl.routing.task.priors import straight_through


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_its_distribution_function_is_that_of_the_binary_concrete(temperature):
    # P(z <= x) = sigmoid(temperature · logit(x) - logit): invert z as a function of u.
    logit = 0.7
    drawn = relaxed_bernoulli(torch.full((5000,), logit, dtype=torch.float64), temperature)

    def distribution_function(x):
        return torch.sigmoid(temperature * torch.tensor(x).logit() - logit).numpy()

    assert kstest(drawn.numpy(), distribution_function).pvalue > 0.01


def test_equals_torch_distributions_under_the_same_noise(monkeypatch):
    uniform = 0.01 + 0.98 * torch.rand(200)
    logits = torch.randn(200)
    monkeypatch.setattr(torch, "rand", lambda *size, **kwargs: uniform)
    monkeypatch.setattr(torch, "rand_like", lambda tensor, **kwargs: uniform)
    expected = RelaxedBernoulli(torch.tensor(0.6), logits=logits).rsample()
    torch.testing.assert_close(relaxed_bernoulli(logits, 0.6), expected)


@pytest.mark.parametrize("extreme", [0.0, 1.0])
def test_the_ends_of_the_noise_stay_finite(monkeypatch, extreme):
    # torch.rand can return 0, and 1 after rounding to a smaller type.
    monkeypatch.setattr(
        torch, "rand_like", lambda tensor, **kwargs: torch.full_like(tensor, extreme)
    )
    logits = torch.zeros(3, requires_grad=True)
    drawn = relaxed_bernoulli(logits, 0.1)
    drawn.sum().backward()
    assert drawn.isfinite().all()
    assert logits.grad.isfinite().all()


def test_straight_through_rounds_and_keeps_the_gradient():
    soft = torch.tensor([0.2, 0.5, 0.51, 0.9], requires_grad=True)
    hard = straight_through(soft)
    assert hard.tolist() == [0, 0, 1, 1]
    (hard * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert soft.grad.tolist() == [1, 2, 3, 4]
