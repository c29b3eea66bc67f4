"""Rows that are sums over the factors of tasks."""

import pytest
import torch

from helpers.compare import assert_same
from helpers.skills import spread
from mttl.adaptation.modes import adapted_router
from mttl.routing import MetadataRouter, PolytroponRouter

G, H, K = 2, 2, 4
FACTORS = torch.tensor([[1.0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]])


def make(**settings):
    return spread(MetadataRouter(G, len(FACTORS), H, K, factors=FACTORS, **settings))


@pytest.mark.parametrize("settings", [{}, {"shared_skill": True}, {"straight_through": True}])
def test_it_is_polytropon_over_sums_of_logits(settings):
    """A plain loop over tasks, groups, heads and factors; the same draws while training."""
    router = make(**settings)
    plain = PolytroponRouter(G, 3, H, K, **settings)
    sums = torch.zeros_like(plain.logits)
    for task in range(3):
        for factor in range(4):
            if FACTORS[task, factor]:
                sums[:, task] += router.logits[:, factor]
    del plain.logits  # a parameter is a leaf, and gradients go on to the factors
    plain.logits = sums
    ids = torch.tensor([2, 0, 1, 1])
    torch.testing.assert_close(router.eval().matrix(), plain.eval().matrix())
    assert_same(router(ids), plain(ids), [router.logits])
    torch.testing.assert_close(router.prior_loss(), plain.prior_loss())
    torch.manual_seed(1)
    drawn = router.train()(ids)
    torch.manual_seed(1)
    assert_same(drawn, plain.train()(ids), [router.logits])


def test_new_tasks_recombine_factors():
    router = make()
    new = adapted_router(
        router, "zero_shot", 1, init="factors", rows=torch.tensor([[0, 1, 0, 1.0]])
    )
    expected = (router.logits[:, 1] + router.logits[:, 3]).detach()
    torch.testing.assert_close(new.logits[:, 0], expected)
    assert new.logits.is_leaf
    mean = router.for_new_tasks(1)
    torch.testing.assert_close(mean.logits[:, 0], router.task_logits().mean(1).detach())
