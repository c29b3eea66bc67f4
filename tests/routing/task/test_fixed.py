"""Rows that are given or learned, and used as they are, or drawn from."""

import pytest
import torch

from mttl.routing import (
    AverageRouter,
    CoefficientRouter,
    ExpertRouter,
    FixedRouter,
    PrivateRouter,
    RandomRouter,
    SharedRouter,
)
from mttl.routing.task.fixed import GivenRows

ROWS = torch.rand(2, 3, 1, 4, generator=torch.Generator().manual_seed(0))
FACTS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 3.0, 1.0]])


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        (SharedRouter(2, 3, n_heads=2), torch.ones(3, 1)),
        (PrivateRouter(2, 3), torch.eye(3)),
        (AverageRouter(2, 3, 2, 4), torch.full((3, 4), 0.25)),
        (ExpertRouter(2, 2, 2, 3, matrix=FACTS), torch.tensor([[0.5, 0, 0.5], [0, 0.75, 0.25]])),
    ],
    ids=["shared", "private", "average", "expert"],
)
def test_all_groups_and_heads_have_the_rows(router: FixedRouter, expected: torch.Tensor) -> None:
    assert torch.equal(router.matrix(), expected[None, :, None].expand_as(router.matrix()))


def test_new_tasks() -> None:
    router = FixedRouter(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 2, n_heads=3)
    mean = router.for_new_tasks(2)
    assert mean.matrix().shape == (2, 2, 3, 2)
    assert torch.equal(mean.weights, torch.tensor([[0.75, 0.25]] * 2))
    assert torch.equal(router.for_new_tasks(1, init="fresh").weights, torch.tensor([[0.5, 0.5]]))


def test_given_rows() -> None:
    router = GivenRows(ROWS)
    assert torch.equal(router(torch.tensor([2, 0, 2])), ROWS[:, [2, 0, 2]])
    assert torch.equal(router.matrix(), ROWS)
    assert not list(router.parameters())


def test_coefficients() -> None:
    router = CoefficientRouter(2, 3, 1, 4)
    torch.nn.init.normal_(router.rows)
    assert torch.equal(router.probabilities(), router.rows)
    torch.testing.assert_close(router.for_new_tasks(2).rows[:, 1], router.rows.mean(1))
    fresh = router.for_new_tasks(2, init="fresh")
    assert torch.equal(fresh.rows, torch.full((2, 2, 1, 4), 0.25))


# Random members: one per group and step, equal weights afterwards.

G, T, H, K = 3, 4, 2, 5
IDS = torch.tensor([3, 0, 0, 2])


def test_a_group_draws_one_skill_for_the_whole_batch() -> None:
    router = RandomRouter(G, T, H, K).train()
    seen = torch.zeros(G, K)
    for _ in range(300):
        weights = router(IDS)
        assert ((weights == 0) | (weights == 1)).all()
        assert torch.equal(weights, weights[:, :1, :1].expand_as(weights))
        assert torch.equal(weights.sum(-1), torch.ones(G, len(IDS), H))
        seen += weights[:, 0, 0]
    # 60 of 300 each; the standard deviation is 7.
    assert (seen - 60).abs().max() < 40
    assert not torch.equal(seen[0], seen[1])  # groups draw apart


def test_skills_that_a_task_does_not_have_are_not_drawn() -> None:
    """As where the skills of an adapted task stand behind those of a run."""
    router = RandomRouter(G, T, H, K).train()
    router.weights[0] = torch.tensor([0.0, 0.5, 0.5, 0.0, 0.0])
    drawn = torch.stack([router(IDS)[:, 1, 0] for _ in range(100)]).sum((0, 1))
    assert (drawn > 0).tolist() == [False, True, True, False, False]
    grown = router.for_new_tasks(2)
    torch.testing.assert_close(grown.matrix()[0, 1, 0], router.weights.mean(0))
