"""Sample batches with the same number of rows of every task, for tasks trained separately."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mttl.data.samplers import TaskBatchSampler


class SeparateSampler(TaskBatchSampler):
    """Joins, in every step, the batches that runs of the single tasks would have.

    Each task passes through its own epochs. An epoch here is that of the largest task.

    ``batch_size`` counts rows per step and process, divided by the number of tasks and rounded
    down; at least one row of each task. After its ``steps``, a task has no more rows. Other
    arguments are those of `TaskBatchSampler`.
    """

    def __init__(
        self,
        task_ids: Sequence[int] | np.ndarray,
        *,
        batch_size: int,
        steps: Mapping[int, int],
        lengths: Sequence[int] | np.ndarray,
        **order: Any,
    ):
        super().__init__(task_ids, batch_size=batch_size, lengths=lengths, **order)
        self.kind, self.steps = "separate", steps
        self.of_each_task = max(1, batch_size // len(self.tasks))
        of_rows = np.asarray(lengths)
        self.members = [
            TaskBatchSampler(
                np.zeros_like(rows), batch_size=self.of_each_task, lengths=of_rows[rows], **order
            )
            for rows in self.rows_of_task
        ]
        self.global_batch_size = sum(member.global_batch_size for member in self.members)
        self.n_steps = self.n_batches = max(len(member) for member in self.members)

    def __iter__(self) -> Iterator[list[int]]:
        first, end = (self.epoch * self.n_batches + batch for batch in (self.batch, self.n_batches))
        streams = [_from_step(member, first) for member in self.members]
        last = max(self.steps.get(int(task), end) for task in self.tasks)
        for step in range(first, end):
            # Loaders read ahead, so the batch after the last step must not be empty.
            known = min(step, last - 1)
            yield [
                int(rows[place])
                for task, rows, stream in zip(self.tasks, self.rows_of_task, streams, strict=True)
                if known < self.steps.get(int(task), end)
                for place in next(stream)
            ]


def _from_step(sampler: TaskBatchSampler, step: int) -> Iterator[list[int]]:
    """Yield the batches of one task from a step on, without end."""
    epoch, batch = divmod(step, len(sampler))
    while True:
        sampler.set_position(epoch, batch)
        yield from sampler
        epoch, batch = epoch + 1, 0
