"""Rows that are given are what a router mixes by."""

import pytest
import torch

from mttl.routing.task.given_rows import GivenRows

ROWS = torch.rand(2, 3, 1, 4, generator=torch.Generator().manual_seed(0))


def test_rows_are_used_as_they_are() -> None:
    router = GivenRows(ROWS)
    assert torch.equal(router(torch.tensor([2, 0, 2])), ROWS[:, [2, 0, 2]])
    assert torch.equal(router.matrix(), ROWS)
    assert router.n_tasks == 3
    assert list(router.parameters()) == []


def test_new_tasks_start_at_the_mean() -> None:
    router = GivenRows(ROWS).for_new_tasks(2)
    torch.testing.assert_close(router.matrix(), ROWS.mean(1, keepdim=True).expand(2, 2, 1, 4))
    fresh = GivenRows(ROWS).for_new_tasks(2, init="fresh").matrix()
    assert float(fresh.abs().max()) <= 0.25
    with pytest.raises(ValueError, match="must be 'mean' or 'fresh'"):
        GivenRows(ROWS).for_new_tasks(1, init="zero")
