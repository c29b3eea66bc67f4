"""Hard choices: their draws, and what they learn from."""

import itertools

import pytest
import torch

from helpers.skills import spread
from mttl.routing import CategoricalRouter, ScoreFunctionRouter


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0, None])
def test_draws_a_skill_as_often_as_the_softmax_says(temperature):
    # The largest of logit + Gumbel noise is a draw of the softmax, at any temperature.
    make = CategoricalRouter if temperature else ScoreFunctionRouter
    settings = {"temperature": temperature} if temperature else {}
    router = spread(make(1, 2, 1, 4, **settings)).train()
    weights = router(torch.ones(40_000, dtype=torch.long))
    assert weights.requires_grad == bool(temperature)
    weights = weights.detach()
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    # Four deviations of a frequency of 40,000 draws.
    torch.testing.assert_close(
        weights.mean(1)[0, 0], router.logits[0, 1, 0].softmax(0).detach(), atol=0.01, rtol=0
    )


def test_soft_draws_and_their_gradients_equal_those_of_pytorch():
    router = spread(CategoricalRouter(2, 3, 2, 4, temperature=0.5, straight_through=False)).train()
    logits = router.logits.detach().clone().requires_grad_()
    target = torch.randn(2, 3, 2, 4)
    torch.manual_seed(5)
    ours = router(torch.arange(3))
    (ours * target).sum().backward()
    torch.manual_seed(5)
    theirs = torch.nn.functional.gumbel_softmax(logits, tau=0.5)
    (theirs * target).sum().backward()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(router.logits.grad, logits.grad)


def test_evaluation_uses_the_likeliest_skill_or_the_softmax():
    hard = spread(CategoricalRouter(2, 3, 1, 4)).eval()
    assert torch.equal(hard.matrix().argmax(-1), hard.logits.argmax(-1))
    assert set(hard.matrix().unique().tolist()) == {0.0, 1.0}
    soft = spread(CategoricalRouter(2, 3, 1, 4, straight_through=False)).eval()
    torch.testing.assert_close(soft.matrix(), soft.logits.softmax(-1))


G, H, K = 2, 2, 3


def expected_loss(logits, costs):
    """Return the mean loss of a task over all joint choices of its groups and heads."""
    chances = logits.softmax(-1).flatten(0, 1)  # (G H, K)
    total = 0
    for joint in itertools.product(range(K), repeat=G * H):
        chance = torch.stack([chances[place, k] for place, k in enumerate(joint)]).prod()
        total = total + chance * costs[joint]
    return total


def test_the_mean_gradient_over_all_draws_is_that_of_the_expected_loss():
    """Weighting every joint choice by its probability leaves no chance in the comparison."""
    torch.manual_seed(1)
    costs = torch.randn([K] * (G * H), dtype=torch.float64)
    router = spread(ScoreFunctionRouter(G, 1, H, K).double())
    task = torch.zeros(1, dtype=torch.long)
    logits = router.logits.detach().clone().requires_grad_()
    expected_loss(logits[:, 0], costs).backward()
    chances = router.logits.detach().softmax(-1)[:, 0].flatten(0, 1)
    total = torch.zeros_like(router.logits)
    for joint in itertools.product(range(K), repeat=G * H):
        weights = torch.nn.functional.one_hot(torch.tensor(joint), K).view(G, 1, H, K).double()
        router.n_seen.fill_(7.0)
        router.mean_losses.fill_(0.8)  # a baseline changes the variance and not the mean
        router.logits.grad = None
        router.choice_loss(task, weights, costs[joint][None]).backward()
        chance = torch.stack([chances[place, k] for place, k in enumerate(joint)]).prod()
        total += chance * router.logits.grad
    torch.testing.assert_close(total, logits.grad)


def test_the_baseline_is_the_running_mean_of_each_task():
    router = ScoreFunctionRouter(1, 3, 1, 2)
    ids, weights = torch.tensor([0, 0, 2]), torch.tensor([[[[1.0, 0.0]]] * 3])
    router.choice_loss(ids, weights, torch.tensor([1.0, 3.0, 5.0]))
    assert router.mean_losses.tolist() == [2.0, 0.0, 5.0]
    assert router.n_seen.tolist() == [2.0, 0.0, 1.0]
    router.choice_loss(ids, weights, torch.tensor([4.0, 4.0, 7.0]))
    assert router.mean_losses.tolist() == [3.0, 0.0, 6.0]
    # An old mean follows by one part in a hundred per example.
    router.n_seen.fill_(1e6)
    router.choice_loss(ids[:1], weights[:, :1], torch.tensor([103.0]))
    assert router.mean_losses[0].item() == pytest.approx(4.0)


@pytest.mark.parametrize("tasks", [[0, 0], [0, 1], [0, 0, 1], [0]])
def test_the_first_batch_is_unbiased(tasks):
    """Over all joint draws, of tasks that are seen for the first time and then again."""
    torch.manual_seed(1)
    costs = torch.rand(len(tasks), 2, dtype=torch.float64) + 3  # of examples and skills
    router = spread(ScoreFunctionRouter(1, 2, 1, 2).double())
    ids, chances = torch.tensor(tasks), router.logits.detach()[0, :, 0].softmax(-1)
    exact = router.logits.detach().clone().requires_grad_()
    (exact.softmax(-1)[0, ids, 0] * costs).sum(-1).mean().backward()
    total = torch.zeros_like(router.logits)
    for joint in map(torch.tensor, itertools.product(range(2), repeat=len(tasks))):
        router.n_seen.zero_()
        router.mean_losses.zero_()
        router.logits.grad = None
        weights = torch.nn.functional.one_hot(joint, 2).view(1, -1, 1, 2).double()
        lost = costs.gather(1, joint[:, None])[:, 0]
        router.choice_loss(ids, weights, lost).mean().backward()
        total += chances[ids, joint].prod() * router.logits.grad
    torch.testing.assert_close(total, exact.grad)


def test_entropy_is_rewarded():
    router = spread(ScoreFunctionRouter(1, 1, 1, 3, entropy=0.5))
    ids, weights = torch.tensor([0]), torch.tensor([[[[1.0, 0.0, 0.0]]]])
    (loss,) = router.choice_loss(ids, weights, torch.tensor([0.0]))  # the advantage is 0
    chances = router.logits.softmax(-1)
    torch.testing.assert_close(loss, 0.5 * (chances * chances.log()).sum())
