"""Batches by tokens: within the budget, the same number each epoch, exact after a resume."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mttl.data.collate import PackedSequences
from mttl.data.samplers import TaskBatchSampler
from mttl.data.token_sampler import TokenBatchSampler
from mttl.io.errors import CheckpointError

BUDGET, MOST_ROWS = 40, 6
ROWS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=60)
WINDOWS = st.sampled_from([0, 1, 3])


def sampler(rows, *, stacks=2, packed_length=None, kind="proportional", **options):
    sizes = np.array(rows)
    sizes = sizes if stacks == 2 else sizes.sum(1, keepdims=True)
    task_ids = np.arange(len(rows)) % 3
    settings = {"token_budget": BUDGET, "batch_size": MOST_ROWS, "seed": 3, **options}
    settings |= {"kind": kind, "temperature": 2.0, "packed_length": packed_length}
    return TokenBatchSampler(task_ids, sizes=sizes, **settings)


def cost(own, packed_length=None):
    """Count the positions of a batch one by one."""
    if packed_length is None:
        return len(own) * own.max(0).sum()
    packed = PackedSequences.of(own[:, 0].tolist(), packed_length)
    return len(packed) * packed_length


@settings(max_examples=60)
@given(
    ROWS,
    st.sampled_from([(1, None), (2, None), (1, 20)]),
    WINDOWS,
    st.integers(1, 3),
    st.sampled_from(["proportional", "uniform", "temperature"]),
)
def test_batches_are_within_the_budget_and_each_process_has_as_many(
    rows, form, window, world_size, kind
):
    stacks, packed_length = form
    options = {"stacks": stacks, "packed_length": packed_length, "length_window": window}
    ranks = [
        sampler(rows, kind=kind, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    for epoch in range(4):
        for rank in ranks:
            rank.set_position(epoch)
        shares = [list(rank) for rank in ranks]
        assert {len(share) for share in shares} == {len(ranks[0])}
        for batch in (batch for share in shares for batch in share):
            own = ranks[0].sizes[batch]
            assert 1 <= len(batch) <= MOST_ROWS
            assert cost(own, packed_length) <= BUDGET
        if kind == "proportional":
            seen = [row for share in shares for batch in share for row in batch]
            if len(rows) >= world_size * len(ranks[0]):
                assert sorted(seen) == list(range(len(rows)))
            assert set(seen) == set(range(len(rows)))


@given(ROWS, WINDOWS, st.integers(0, 3), st.data())
def test_a_position_is_exact(rows, window, epoch, data):
    whole = sampler(rows, length_window=window)
    whole.set_position(epoch)
    batches = list(whole)
    batch = data.draw(st.integers(0, len(batches) - 1))
    whole.set_position(epoch, batch)
    other = sampler(rows, length_window=window)
    other.load_state_dict(whole.state_dict())
    assert list(other) == batches[batch:]


def test_an_epoch_that_needs_more_batches_takes_those_of_the_first():
    ours = sampler([(n * 7 % 12 + 1, n * 5 % 8 + 1) for n in range(40)])
    first = [set(batch.tolist()) for batch in ours._first_batches]
    ours._cut = lambda order: [order[i : i + 1] for i in range(len(order))]
    ours.set_position(5)
    found = list(ours)
    assert len(found) == len(ours)
    assert all(any(batch >= set(part) for batch in first) for part in found)  # some cut in two
    assert sorted(row for batch in found for row in batch) == list(range(40))


def test_another_budget_is_told_apart():
    rows = [(3, 2)] * 30
    state = sampler(rows)
    state.set_position(1, 2)
    for other, told in (
        ({"token_budget": 50}, "token_budget 40 there, 50 here"),
        ({"world_size": 2}, "processes 1 there, 2 here"),
        ({"stacks": 1, "packed_length": 20}, "packed_length None there, 20 here"),
    ):
        with pytest.raises(CheckpointError, match=told):
            sampler(rows, **other).load_state_dict(state.state_dict())
    plain = TaskBatchSampler([0] * 30, batch_size=MOST_ROWS, seed=3)
    plain.set_position(0, 1)
    with pytest.raises(CheckpointError, match="token_budget None there, 40 here"):
        sampler(rows).load_state_dict(plain.state_dict())
