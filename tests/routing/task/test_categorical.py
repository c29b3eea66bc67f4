import pytest
import torch

from helpers.skills import spread
from mttl.routing import CategoricalRouter

MANY = 40_000


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_draws_a_skill_as_often_as_the_softmax_says(temperature):
    # The largest of logit + Gumbel noise is a draw of the softmax, at any temperature.
    router = spread(CategoricalRouter(1, 2, 1, 4, temperature=temperature)).train()
    weights = router(torch.ones(MANY, dtype=torch.long)).detach()
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    # Four deviations of a frequency of 40,000 draws.
    torch.testing.assert_close(
        weights.mean(1)[0, 0], router.logits[0, 1, 0].softmax(0), atol=0.01, rtol=0
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
