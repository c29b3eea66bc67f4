"""Batches of tasks that are trained separately, against those of each task alone."""

from itertools import islice

import numpy as np
import pytest

from mttl.data.samplers import TaskBatchSampler
from mttl.data.separate_sampler import SeparateSampler

SIZES = {3: 7, 5: 2, 8: 12}
IDS = np.repeat(list(SIZES), list(SIZES.values()))[np.random.default_rng(0).permutation(21)]
LENGTHS = np.arange(21) % 5


def batches(sampler: TaskBatchSampler, n: int, epoch: int = 0, batch: int = 0) -> list[list[int]]:
    found: list[list[int]] = []
    while len(found) < n:
        sampler.set_position(epoch, batch)
        found += islice(sampler, n - len(found))
        epoch, batch = epoch + 1, 0
    return found


@pytest.mark.parametrize("place", [{}, {"rank": 1, "world_size": 2}])
@pytest.mark.parametrize("window", [0, 2])
def test_each_task_has_the_batches_of_a_run_alone(place: dict[str, int], window: int) -> None:
    order = {"seed": 4, "length_window": window, **place}
    whole = SeparateSampler(IDS, batch_size=6, steps={3: 4}, lengths=LENGTHS, **order)
    joined = batches(whole, 15)
    for task in SIZES:
        rows = np.flatnonzero(task == IDS)
        alone = TaskBatchSampler(rows * 0, batch_size=2, lengths=LENGTHS[rows], **order)
        expected = [rows[batch].tolist() for batch in batches(alone, 4 if task == 3 else 15)]
        found = [[row for row in batch if IDS[row] == task] for batch in joined]
        assert [batch for batch in found if batch] == expected
    again = SeparateSampler(IDS, batch_size=6, steps={3: 4}, lengths=LENGTHS, **order)
    epoch, batch = divmod(7, len(whole))
    assert batches(again, 8, epoch, batch) == joined[7:]


def test_there_is_a_row_of_each_task_and_a_batch_after_the_last_step() -> None:
    steps = dict.fromkeys(SIZES, 2) | {8: 3}
    found = batches(SeparateSampler(IDS, batch_size=1, steps=steps, lengths=LENGTHS), 5)
    assert [[int(IDS[row]) for row in batch] for batch in found] == [[3, 5, 8]] * 2 + [[8]] * 3
