"""The heads of all tasks of a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from mttl.heads.head import Head, HeadBatch


class TaskHeads(nn.Module):
    """A head for every task, in the order of task ids; a batch may mix tasks.

    Args:
        heads: The heads.
    """

    role = "heads"

    def __init__(self, heads: Sequence[Head]) -> None:
        super().__init__()
        self.of_task: Any = nn.ModuleList(heads)

    def losses(
        self, task_ids: Int[Tensor, "B"], hidden: Float[Tensor, "B L D"], batch: Mapping[str, Any]
    ) -> Float[Tensor, "B W"]:
        """Return the loss of each word or text; 0 after the last word.

        Args:
            task_ids: Task of each example.
            hidden: Last hidden states.
            batch: Batch of `mttl.data.headed`: ``attention_mask``, ``word_starts`` and
                ``references``, of which the first is the target.
        """
        n_words, found = max(1, batch["word_starts"].shape[1]), dict[int, Tensor]()
        for head, own, part, rows in self._by_task(task_ids, hidden, batch):
            # Words that were cut have no state.
            wanted = [batch["references"][row][0] for row in rows]
            if part.word_starts.shape[1]:
                pairs = zip(wanted, part.n_words(), strict=True)
                wanted = [" ".join(text.split()[:n]) for text, n in pairs]
            targets = {name: x.to(own.device) for name, x in head.targets(wanted).items()}
            losses = head.losses(own, HeadBatch(part.mask, part.word_starts, targets))
            found |= zip(rows, pad(losses, (0, n_words - losses.shape[1])), strict=True)
        return torch.stack([found[row] for row in range(len(task_ids))])

    def answers(
        self,
        task_ids: Int[Tensor, "B"],
        hidden: Float[Tensor, "B L D"],
        batch: Mapping[str, Any],
        *,
        scored: bool = False,
    ) -> list[Any]:
        """Return the answer of each example, or its `Head.scored`; arguments as in `losses`."""
        found = dict[int, Any]()
        for head, own, part, rows in self._by_task(task_ids, hidden, batch):
            answers = head.scored(own, part) if scored else head.answers(own, part)
            found |= zip(rows, answers, strict=True)
        return [found[row] for row in range(len(task_ids))]

    def _by_task(
        self, task_ids: Int[Tensor, "B"], hidden: Tensor, batch: Mapping[str, Any]
    ) -> Iterator[tuple[Head, Tensor, HeadBatch, list[int]]]:
        """Yield for each task its head, and the states, words and numbers of its rows."""
        ids = task_ids.tolist()
        for task_id in dict.fromkeys(ids):
            rows = [row for row, other in enumerate(ids) if other == task_id]
            starts = batch["word_starts"][rows]
            width = int((starts >= 0).sum(1).max())
            part = HeadBatch(batch["attention_mask"][rows].bool(), starts[:, :width])
            yield self.of_task[task_id], hidden[rows], part, rows
