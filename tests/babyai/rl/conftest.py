"""Rollouts of random numbers in which every frame has other values."""

from collections.abc import Callable

import pytest
import torch

from mttl.babyai.rl.sequences import Rollout


@pytest.fixture
def make_steps() -> Callable[..., list[Rollout]]:
    """Return a function that makes steps: log probabilities number the frames from 0 on."""

    def make(
        n_steps: int = 6, n_tasks: int = 2, n_slots: int = 3, memory: int = 4
    ) -> list[Rollout]:
        shape = (n_tasks, n_slots)
        count = n_tasks * n_slots
        return [
            Rollout(
                images=torch.randint(0, 11, (*shape, 7, 7, 3), dtype=torch.uint8),
                missions=torch.randint(0, 2, (*shape, 5), dtype=torch.uint8),
                begins=torch.rand(shape) < 0.3,
                memory=torch.randn(*shape, memory),
                actions=torch.randint(0, 7, shape),
                log_probs=torch.arange(count).reshape(shape) + float(s * count),
                values=torch.randn(shape),
                rewards=torch.rand(shape),
                ends=torch.rand(shape) < 0.3,
            )
            for s in range(n_steps)
        ]

    return make
