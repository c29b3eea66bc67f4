"""Random members: one per group and step, equal weights afterwards."""

import torch

from mttl.routing import RandomRouter

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
    assert not drawn[[0, 3, 4]].any()
    assert drawn[[1, 2]].all()
    grown = router.for_new_tasks(2)
    torch.testing.assert_close(grown.matrix()[0, 1, 0], router.weights.mean(0))
