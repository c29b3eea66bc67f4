from dataclasses import fields

import torch

from mttl.babyai.rl.rollout import stack_steps


def test_fields_are_stacked_in_order_and_memory_at_every_second_step(make_steps):
    steps = make_steps(n_steps=6)
    rollout = stack_steps(steps, recurrence=2)
    assert rollout.recurrence == 2
    for s, step in enumerate(steps):
        for field in fields(step):
            if field.name != "memory":
                assert torch.equal(getattr(rollout, field.name)[s], getattr(step, field.name)), (
                    field.name
                )
    assert len(rollout.memory) == 3
    for c in range(3):
        assert torch.equal(rollout.memory[c], steps[2 * c].memory)
