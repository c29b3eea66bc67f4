import torch

from mttl.data.collate import TrainCollator
from mttl.data.loader import ResumableLoader
from mttl.data.samplers import TaskBatchSampler


def loader(n_workers=0):
    sampler = TaskBatchSampler([0] * 10, batch_size=3, seed=0)
    return ResumableLoader(range(10), sampler, collate_fn=list, num_workers=n_workers)


def test_the_position_counts_what_was_handed_out_not_what_was_read_ahead():
    """The global generator is left alone."""
    before = torch.get_rng_state()
    for n_workers in (0, 2):
        batches = loader(n_workers)
        iterator = iter(batches)
        assert batches.state_dict()["batch"] == 0
        next(iterator)
        next(iterator)
        state = batches.state_dict()
        assert (state["epoch"], state["batch"]) == (0, 2)
        rest = list(iterator)
        resumed = loader(n_workers)
        resumed.load_state_dict(state)
        assert list(resumed) == rest
        assert len(resumed) == 4

    assert torch.equal(torch.get_rng_state(), before)


def test_batches_of_a_step_know_its_tokens_and_fillers_have_none():
    collate = TrainCollator(pad_id=0, decoder_only=False)
    sampler = TaskBatchSampler([0] * 5, batch_size=1, seed=0, global_batch_size=4, n_parts=4)
    rows = [{"input_ids": [3], "labels": [7] * (row + 1), "task_id": 0} for row in range(5)]
    counted = {"n_targets": collate.n_targets, "n_parts": 4}
    loader = ResumableLoader(rows, sampler, collate_fn=collate, **counted)
    batches = list(loader)
    counts = [collate.n_targets(batch) for batch in batches]
    # Four rows make the first step; one is left for the four batches of the second.
    assert len(counts) == len(loader) == 8
    assert counts[4] > 0
    assert counts[5:] == [0, 0, 0]
    tokens = [float(batch["step_tokens"]) for batch in batches]
    assert tokens == [sum(counts[:4]) / 4] * 4 + [counts[4] / 4] * 4
    assert [float(batch["step_rows"]) for batch in batches] == [1.0] * 4 + [0.25] * 4
