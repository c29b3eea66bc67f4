"""Rows that are learned and used as they are."""

import torch

from mttl.routing import CoefficientRouter


def test_rows_are_used_as_they_are() -> None:
    router = CoefficientRouter(2, 3, 1, 4)
    torch.nn.init.normal_(router.rows)
    ids = torch.tensor([2, 0])
    assert torch.equal(router(ids), router.rows[:, ids])
    assert torch.equal(router.probabilities(), router.rows)
    new = router.for_new_tasks(2)
    torch.testing.assert_close(new.rows[:, 1], router.rows.mean(1))
    fresh = router.for_new_tasks(2, init="fresh")
    assert torch.equal(fresh.rows, torch.full((2, 2, 1, 4), 0.25))
