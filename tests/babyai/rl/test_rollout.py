from dataclasses import fields, replace

import pytest
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


def test_later_changes_of_what_was_collected_do_not_reach_the_rollout(make_steps):
    steps = make_steps(n_steps=2)
    rollout = stack_steps(steps, recurrence=1)
    before = rollout.memory.clone()
    steps[0].memory.zero_()
    assert torch.equal(rollout.memory, before)


def test_a_policy_without_memory(make_steps):
    assert stack_steps(make_steps(memory=0), recurrence=1).memory.shape == (6, 2, 3, 0)


@pytest.mark.parametrize(
    ("n_steps", "recurrence"), [(6, 4), (6, 0), (6, -2), (4, 8), (0, 2)], ids=str
)
def test_steps_that_cannot_be_cut(make_steps, n_steps, recurrence):
    message = rf"{n_steps} steps cannot be cut into sequences of {recurrence}: .* multiple of"
    with pytest.raises(ValueError, match=message):
        stack_steps(make_steps(n_steps), recurrence)


@pytest.mark.usefixtures("unchecked_shapes")
def test_fields_that_do_not_fit(make_steps):
    rollout = stack_steps(make_steps(n_steps=6), recurrence=2)
    with pytest.raises(
        ValueError, match=r"rewards has the shape \(3,\), .* begin with \(6, 2, 3\) as actions"
    ):
        replace(rollout, rewards=torch.zeros(3))
    with pytest.raises(ValueError, match=r"memory has the shape \(4, 3\), .* with \(4, 2, 3\)"):
        replace(rollout, memory=torch.zeros(4, 3))
    for n in (0, 4):
        with pytest.raises(ValueError, match=rf"memory has {n} entries, which do not divide 6"):
            replace(rollout, memory=torch.zeros(n, 2, 3, 4))
