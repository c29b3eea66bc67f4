import pytest
import torch
from scipy.stats import kstest
from torch.distributions import RelaxedBernoulli

from helpers.skills import spread
from mttl.routing import IBP, PolytroponRouter, RoutingPrior
from mttl.routing.task.polytropon import relaxed_bernoulli
from mttl.routing.task.priors import straight_through

TASK_IDS = torch.tensor([2, 0, 1, 1])


def make(**settings):
    return spread(PolytroponRouter(2, 3, 2, 4, **settings))


@pytest.mark.parametrize("training", [False, True])
def test_a_shared_skill_is_always_on(training):
    router = make(shared_skill=True).train(training)
    assert router.logits.shape == (2, 3, 2, 3)
    assert torch.equal(router.probabilities()[..., -1], torch.ones(2, 3, 2))
    weights = router(TASK_IDS)
    # A skill that is fully on has the largest share of its row.
    assert (weights[..., -1] >= weights.max(-1).values).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 2))


def test_the_prior_is_of_the_probabilities():
    router = make(prior=RoutingPrior(ibp=IBP(2.0, 0.5)))
    torch.testing.assert_close(router.prior_loss(), router.prior(router.logits.sigmoid()))
    router.prior_loss().backward()
    assert router.logits.grad.any()


def test_logit_dropout_sets_probabilities_to_one_half_while_training_only():
    router = make(logit_dropout=0.5, relaxed=False, normalise="average_correction")
    factor = 0.5**0.5
    ids = torch.zeros(2000, dtype=torch.long)
    dropped = torch.isclose(router.train()(ids) / factor, torch.tensor(0.5))
    # 32 000 draws: the standard error is 0.3 %.
    assert dropped.double().mean().item() == pytest.approx(0.5, abs=0.015)
    torch.testing.assert_close(router.eval()(ids), router.matrix()[:, ids])
    torch.testing.assert_close(router.matrix(), router.logits.sigmoid() * factor)


def published(logits, *, round_as_published):
    """Multi-head routing's own evaluation: probabilities, rounded if straight-through is on."""
    active = torch.sigmoid(logits)
    if round_as_published:
        active = torch.round(active)
    return active / (active.sum(-1, keepdim=True) + 1e-12)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_choices_are_rounded_in_training_and_evaluation_alike(hard, training):
    router = make(straight_through=hard, relaxed=False).train(training)
    expected = published(router.logits, round_as_published=hard)
    torch.testing.assert_close(router(TASK_IDS), expected[:, TASK_IDS])
    torch.testing.assert_close(router.matrix(), expected)
    if not hard:
        torch.testing.assert_close(router.probabilities(), router.logits.sigmoid())
    if hard:
        assert set(router.probabilities().unique().tolist()) == {0.0, 1.0}
        assert (router.matrix() - router.logits.sigmoid()).abs().max() > 0.2


def test_the_temperature_is_saved_and_can_be_annealed():
    router = make(temperature=2.0)
    assert router.state_dict()["temperature"] == 2.0
    router.temperature.fill_(0.5)
    grown = router.for_new_tasks(2)
    assert grown.temperature == 0.5
    torch.testing.assert_close(grown.logits[:, 1], router.logits.mean(1))


def test_a_hard_row_without_any_skill_keeps_its_gradient_small():
    """Half of all hard draws are 0: with two skills a quarter of the rows has none."""
    torch.manual_seed(0)
    router = PolytroponRouter(4, 16, 1, 2, straight_through=True).train()
    mixing = router(torch.arange(16))
    assert (mixing.sum(-1) == 0).any()
    (mixing * torch.randn_like(mixing)).sum().backward()
    # Each entry is a product of a few numbers of the order of 1.
    assert router.logits.grad.abs().max() < 10


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
