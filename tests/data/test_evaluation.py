import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mttl.data.evaluation import evaluation_batches


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_evaluation_deals_every_row_once(lengths, batch_size, world):
    shares = [
        evaluation_batches(lengths, batch_size=batch_size, rank=rank, world_size=world)
        for rank in range(world)
    ]
    rows = [row for share in shares for batch in share for row in batch]
    assert sorted(rows) == list(range(len(lengths)))
    assert all(len(batch) <= batch_size for share in shares for batch in share)
    assert len({len(share) for share in shares}) == 1
    if len(lengths) >= world and batch_size > 1:
        assert all(batch for share in shares for batch in share)


def test_evaluation_batches_save_padding_and_are_deterministic():
    lengths = np.random.default_rng(0).integers(1, 100, size=200)
    batches = evaluation_batches(lengths, batch_size=10)
    assert batches == evaluation_batches(lengths, batch_size=10)
    padded = sum(lengths[batch].max() * len(batch) for batch in batches)
    unsorted = sum(lengths[i : i + 10].max() * 10 for i in range(0, 200, 10))
    assert padded < 1.1 * lengths.sum() < unsorted
    # Not in the order of length: the first few batches stand for all.
    means = [lengths[batch].mean() for batch in batches]
    assert means != sorted(means)
