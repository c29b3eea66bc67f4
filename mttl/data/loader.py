"""Data loader with a position, so that a run can be resumed at any batch.

Lightning saves the state of loaders, but counts a stop within an epoch (`max_steps`, `max_time`) as
its end. The position kept here advances when a batch is used, not when a worker prefetches it, and
moves to the next epoch with the last batch.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from mttl.data.samplers import TaskBatchSampler
from mttl.routing.token.masks import IGNORED


class ResumableLoader(DataLoader):
    """Yields the batches of ``sampler`` from its position, which it advances.

    Its length is that of a whole epoch, as Lightning expects.

    If ``n_targets`` counts the predicted tokens of a batch, every batch has the fields
    ``step_parts``, the number of batches of its optimizer step (at most ``n_parts``), and
    ``step_tokens`` and ``step_rows``, the means over them. Dividing losses by such a mean gives
    every token (or row) of the step the same weight. ``draw`` makes a batch of collated rows and a
    text that differs for each batch of each epoch. ``before_batch`` is called before each batch,
    after all work on earlier ones, including validation and logging.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: TaskBatchSampler,
        *,
        n_targets: Callable[[Mapping[str, Any]], int] | None = None,
        n_parts: int = 1,
        draw: Callable[[Any, str], Any] | None = None,
        **options: Any,
    ):
        # A separate generator: seeds of workers must not advance the global one, on which dropout
        # depends, once more in a resumed run.
        generator = torch.Generator().manual_seed(sampler.seed)
        super().__init__(dataset, batch_sampler=sampler, generator=generator, **options)
        self.position = sampler
        self.n_targets, self.n_parts, self.draw = n_targets, n_parts, draw
        self.before_batch: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[Any]:
        epoch, first = self.position.epoch, self.position.batch
        read = super().__iter__()
        if (draw := self.draw) is not None:  # here, since workers do not know the epoch
            seed, rows = self.position.seed, enumerate(read, first)
            read = (draw(some, f"{seed} {epoch} {number}") for number, some in rows)
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
        """Yield the batches with the token counts of their step."""
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
        """Restore a saved position, at which the next `iter` begins."""
        self.position.load_state_dict(state_dict)
