import torch
from hypothesis import given
from hypothesis import strategies as st

from mttl.babyai.rl.sequences import (
    Rollout,
    cut_sequences,
    distinct_missions,
    minibatches,
    stack_steps,
    without_padding,
)

S, T, N, RECURRENCE = 12, 2, 4, 3
CUTS = S // RECURRENCE


def make_steps(n_steps, n_tasks=2, n_slots=3, memory=4):
    """Random steps in which every frame has other values: log probabilities number the frames."""
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


def test_an_epoch_uses_every_frame_once_in_an_order_of_its_own():
    """Of sequences, which stand in order with the memory of their first step."""
    steps = make_steps(S, T, N)
    rollout = stack_steps(steps, RECURRENCE)
    for name, value in rollout._asdict().items():
        kept = steps[::RECURRENCE] if name == "memory" else steps
        assert torch.equal(value, torch.stack([getattr(step, name) for step in kept])), name
    sequences = cut_sequences(rollout, rollout.log_probs + 0.5, -rollout.log_probs)
    assert sequences.actions.shape == (T, RECURRENCE, CUTS * N)
    check_frames(sequences, rollout)
    step, _, slot = places(sequences.log_probs[0, 0])
    assert (step // RECURRENCE * N + slot).tolist() == list(range(CUTS * N))

    generator = torch.Generator().manual_seed(1)
    batches = list(minibatches(sequences, n_minibatches=4, n_epochs=3, generator=generator))
    assert len(batches) == 12
    orders = set()
    for epoch in range(3):
        parts = batches[4 * epoch : 4 * epoch + 4]
        for batch in parts:
            assert batch.actions.shape == (T, RECURRENCE, CUTS * N // 4)
            check_frames(batch, rollout)
        seen = torch.cat([batch.log_probs for batch in parts], dim=2)
        assert sorted(seen.flatten().tolist()) == list(range(S * T * N))
        step, _, slot = places(seen[:, 0])
        orders |= {tuple(row) for row in (step * N + slot).tolist()}
    assert len(orders) == 3 * T  # every task has its own


def test_what_was_collected_without_gradients_can_be_learned_from():
    with torch.inference_mode():
        rollout = stack_steps(make_steps(4), recurrence=2)
        rewards = rollout.rewards
    sequences = cut_sequences(rollout, rewards, rewards)
    (batch,) = minibatches(sequences, n_minibatches=1, n_epochs=1, generator=torch.Generator())
    weight = torch.ones(4, requires_grad=True)
    (batch.memory @ weight).sum().backward()  # autograd saves the memory
    assert not any(field.is_inference() for field in batch)


@given(
    sizes=st.tuples(*(st.integers(1, n) for n in (5, 3, 4, 6))),
    n_tokens=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_the_distinct_missions_are_a_set_and_lead_back_to_every_frame(sizes, n_tokens, seed):
    """Missions of different lengths are padded with 0; what pads all of them is dropped."""
    generator = torch.Generator().manual_seed(seed)
    missions = torch.randint(1, n_tokens + 1, sizes, generator=generator)
    lengths = torch.randint(0, sizes[-1] + 1, sizes[:-1], generator=generator)
    padded = (missions * (torch.arange(sizes[-1]) < lengths[..., None])).to(torch.uint8)
    missions = without_padding(padded)
    length = missions.shape[-1]
    assert torch.equal(missions, padded[..., :length])
    assert not padded[..., length:].any()
    assert length == 1 or padded[..., length - 1].any()
    found, index = distinct_missions(padded)
    tasks = torch.arange(sizes[1])[:, None]
    assert torch.equal(found[tasks, index], missions)
    sets = [{tuple(row) for row in missions[:, t].flatten(0, 1).tolist()} for t in range(sizes[1])]
    assert found.shape[1] == max(map(len, sets))
    for task, distinct in enumerate(sets):
        rows = [tuple(row) for row in found[task].tolist()]
        assert set(rows) == distinct
        assert set(rows[: len(distinct)]) == distinct  # before the repetitions
        assert index[:, task].max() < len(distinct)
