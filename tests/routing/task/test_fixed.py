import pytest
import torch

from mttl.routing import FixedRouter, PrivateRouter, SharedRouter, expert_router


def test_shared_is_one_skill_for_all():
    router = SharedRouter(2, 3, n_heads=2)
    assert torch.equal(router.matrix(), torch.ones(2, 3, 2, 1))


def test_private_is_one_skill_per_task():
    router = PrivateRouter(2, 3)
    assert torch.equal(router.matrix()[1, :, 0], torch.eye(3))


def test_expert_normalises_its_rows():
    router = expert_router(torch.tensor([[1.0, 0.0, 1.0], [0.0, 3.0, 1.0]]), 2, n_heads=2)
    expected = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.75, 0.25]])
    for group in range(2):
        for head in range(2):
            assert torch.equal(router.matrix()[group, :, head], expected)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_expert_weights_must_be_finite_and_not_negative(wrong):
    with pytest.raises(ValueError, match="must hold finite weights of at least 0"):
        expert_router(torch.tensor([[1.0, wrong]]), 1)


def test_every_task_needs_a_skill():
    matrix = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"no skill to the tasks with ids \[1, 3\]"):
        expert_router(matrix, 1)


def test_new_tasks():
    router = FixedRouter(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 2, n_heads=3)
    mean = router.for_new_tasks(2)
    assert mean.matrix().shape == (2, 2, 3, 2)
    assert torch.equal(mean.weights, torch.tensor([[0.75, 0.25]] * 2))
    assert torch.equal(router.for_new_tasks(1, init="fresh").weights, torch.tensor([[0.5, 0.5]]))
