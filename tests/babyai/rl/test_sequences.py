from dataclasses import fields

import pytest
import torch

from mttl.babyai.rl.sequences import cut_sequences, minibatches, stack_steps

S, T, N, RECURRENCE = 12, 2, 4, 3
CUTS = S // RECURRENCE


@pytest.fixture
def rollout(make_steps):
    return stack_steps(make_steps(S, T, N), RECURRENCE)


@pytest.fixture
def sequences(rollout):
    return cut_sequences(rollout, rollout.log_probs + 0.5, -rollout.log_probs)


def places(log_probs):
    """Return step, task and slot of frames: log probabilities number them."""
    number = log_probs.long()
    return number // (T * N), number // N % T, number % N


def check_frames(batch, rollout):
    """Check that all fields of a batch are of the same frame, in order, with its memory."""
    step, task, slot = places(batch.log_probs)
    assert torch.equal(task, torch.arange(T)[:, None, None].expand_as(task))
    for name in ("images", "begins", "actions", "values"):
        assert torch.equal(getattr(batch, name), getattr(rollout, name)[step, task, slot]), name
    assert torch.equal(batch.advantages, batch.log_probs + 0.5)
    assert torch.equal(batch.returns, -batch.log_probs)
    missions = batch.missions[torch.arange(T)[:, None, None], batch.mission_index]
    length = missions.shape[-1]  # no longer than the longest
    assert torch.equal(missions, rollout.missions[step, task, slot][..., :length])
    assert torch.equal(step, step[:, :1] + torch.arange(RECURRENCE)[:, None])
    assert torch.equal(slot, slot[:, :1].expand_as(slot))
    assert (step[:, 0] % RECURRENCE == 0).all()
    cut = step[:, 0] // RECURRENCE
    assert torch.equal(batch.memory, rollout.memory[cut, task[:, 0], slot[:, 0]])


def test_steps_are_stacked_in_order_and_memory_at_every_second_one(make_steps):
    steps = make_steps(n_steps=6)
    rollout = stack_steps(steps, recurrence=2)
    for name, value in vars(rollout).items():
        kept = steps[::2] if name == "memory" else steps
        assert torch.equal(value, torch.stack([getattr(step, name) for step in kept])), name


def test_sequences_are_in_order_with_the_memory_of_their_first_step(rollout, sequences):
    assert sequences.actions.shape == (T, RECURRENCE, CUTS * N)
    check_frames(sequences, rollout)
    step, _, slot = places(sequences.log_probs[0, 0])
    assert (step // RECURRENCE * N + slot).tolist() == list(range(CUTS * N))


def test_an_epoch_uses_every_frame_once(rollout, sequences):
    generator = torch.Generator().manual_seed(1)
    batches = list(minibatches(sequences, n_minibatches=4, n_epochs=3, generator=generator))
    assert len(batches) == 12
    for epoch in range(3):
        seen = []
        for batch in batches[4 * epoch : 4 * epoch + 4]:
            assert batch.actions.shape == (T, RECURRENCE, CUTS * N // 4)
            check_frames(batch, rollout)
            seen += batch.log_probs.flatten().long().tolist()
        assert sorted(seen) == list(range(S * T * N))


def test_every_epoch_and_every_task_has_an_order_of_its_own(sequences):
    generator = torch.Generator().manual_seed(1)
    one, two = minibatches(sequences, n_minibatches=1, n_epochs=2, generator=generator)
    order = [places(batch.log_probs[:, 0]) for batch in (one, two)]
    orders = {tuple((o[0] * N + o[2])[task].tolist()) for o in order for task in range(T)}
    assert len(orders) == 4


def test_what_was_collected_without_gradients_can_be_learned_from(make_steps):
    with torch.inference_mode():
        rollout = stack_steps(make_steps(4), recurrence=2)
        rewards = rollout.rewards
    sequences = cut_sequences(rollout, rewards, rewards)
    (batch,) = minibatches(sequences, n_minibatches=1, n_epochs=1, generator=torch.Generator())
    weight = torch.ones(4, requires_grad=True)
    (batch.memory @ weight).sum().backward()  # autograd saves the memory
    assert not any(getattr(batch, field.name).is_inference() for field in fields(batch))
