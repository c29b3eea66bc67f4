"""A data loader that knows which batch comes next, so that a run can stop and go on anywhere.

Lightning saves and restores the state of loaders that have one, but its own idea of the epoch
counts a stop in the middle (`max_steps`, `max_time`) as the end. So the position is kept here: it
moves when a batch is handed out, not when a worker reads ahead, and it moves to the next epoch
with the last batch.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from mttl.data.samplers import TaskBatchSampler
from mttl.routing.token.masks import IGNORED


class ResumableLoader(DataLoader):
    """Hands out the batches of ``sampler`` from its position on, and keeps that position.

    Its length is that of a whole epoch, wherever `iter` begins, as Lightning expects.

    Args:
        dataset: The rows, a map-style data set.
        sampler: Decides the batches and holds the position.
        n_targets: Counts the tokens that a batch predicts. If given, every batch has the fields
            ``step_parts``, the number of batches of its optimizer step, and ``step_tokens`` and
            ``step_rows``, the means over them. Losses are divided by such a mean, so that every
            token (or row) of the step has the same weight.
        n_parts: Batches of a step; the last step of an epoch may have fewer.
        options: Of `torch.utils.data.DataLoader`.

    Attributes:
        before_batch: Called before each batch is handed out, when all that belongs to earlier ones
            is over, validations and logs included.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: TaskBatchSampler,
        *,
        n_targets: Callable[[Mapping[str, Any]], int] | None = None,
        n_parts: int = 1,
        **options: Any,
    ):
        # Its own generator: workers' seeds must not advance the global one, on which dropout
        # depends, once more in a run that is resumed.
        generator = torch.Generator().manual_seed(sampler.seed)
        super().__init__(dataset, batch_sampler=sampler, generator=generator, **options)
        self.position = sampler
        self.n_targets, self.n_parts = n_targets, n_parts
        self.before_batch: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[Any]:
        epoch, first = self.position.epoch, self.position.batch
        read = super().__iter__()
        batches = enumerate(read if self.n_targets is None else self._counted(read, first), first)
        while True:
            if self.before_batch is not None:
                self.before_batch()
            try:
                batch, content = next(batches)
            except StopIteration:
                return
            self.position.set_position(epoch, batch + 1)
            yield content

    def _counted(self, batches: Iterator[Any], first: int) -> Iterator[Any]:
        """Read the batches of a step together, and add the step's number of tokens to each."""
        assert self.n_targets is not None
        while step := list(islice(batches, self.n_parts - first % self.n_parts)):
            for number, batch in enumerate(step, first):
                if self.position.is_filler(number):
                    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
            first += len(step)
            tokens = list(map(self.n_targets, step))
            rows = [len(batch["task_ids"]) * (n > 0) for batch, n in zip(step, tokens, strict=True)]
            means = torch.tensor([sum(tokens), sum(rows)]) / len(step)
            own = {"step_tokens": means[0], "step_rows": means[1], "step_parts": len(step)}
            yield from ({**batch, **own} for batch in step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        return self.position.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a saved position; the next `iter` begins there."""
        self.position.load_state_dict(state_dict)
