"""Training batches by a budget of tokens: many short rows, or few long ones.

The rows of an epoch are drawn as `TaskBatchSampler` draws them, sorted by length within windows
where that is asked for, and cut into batches whose tokens, padding included, are within the budget.
Batches come in a random order; step s of R processes takes batches s R … s R + R - 1, one each.

How many batches the cut leaves differs from epoch to epoch, and schedules need a number. It is that
of the first epoch and two in a hundred more. An epoch that has fewer gets them by cutting its
largest batches in two; one that would have more takes the batches of the first in another order.
(Where tasks are drawn with replacement, what is over is left out.)
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64

from mttl.data.collate import PackedSequences
from mttl.data.samplers import TaskBatchSampler

# Batches that an epoch has beyond those of the first, as a fraction.
SPARE = 0.02


class TokenBatchSampler(TaskBatchSampler):
    """Yields the batches of one process, each within a budget of tokens.

    Args:
        sizes: Tokens of every row in each stack: (N, 2) for encoder and decoder, (N, 1) for a
            decoder-only model.
        token_budget: The most tokens of a batch of a process: rows × the most tokens of one in
            each stack, or sequences × their length where rows are packed.
        batch_size: The most rows of it.
        packed_length: The most tokens of a sequence of several rows; None gives each its own.
        length_window: Sort the rows of about so many batches by length; 0 leaves them as drawn.
        options: As for `TaskBatchSampler`: kind, temperature, seed, rank and world size.
    """

    def __init__(
        self,
        task_ids: Sequence[int] | np.ndarray,
        *,
        sizes: Int64[np.ndarray, "N S"],
        token_budget: int,
        batch_size: int,
        packed_length: int | None = None,
        length_window: int = 0,
        **options: Any,
    ):
        super().__init__(task_ids, batch_size=batch_size, **options)
        self.totals = sizes.sum(1)
        self.sizes, self.token_budget, self.batch_size = sizes, token_budget, batch_size
        self.packed_length, self.length_window = packed_length, length_window
        self.n_drawn = self.n_rows
        rows = min(batch_size, max(1, int(token_budget / self.totals.mean())))
        self.window = length_window * rows * self.world_size
        self.n_steps = math.ceil(len(self._first_batches) * (1 + SPARE) / self.world_size)
        self.n_batches = self.n_steps

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.global_batches(self.epoch)
        for i in range(self.batch, self.n_batches):
            yield batches[i * self.world_size + self.rank].tolist()

    def is_filler(self, batch: int) -> bool:
        """Return False: every batch has rows that count."""
        return False

    def global_batches(self, epoch: int) -> list[Int64[np.ndarray, "B"]]:
        """Return the rows of each batch of all processes in an epoch, step by step."""
        rng = np.random.default_rng([self.seed, epoch])
        batches, wanted = self._cut(self._drawn(rng)), self.n_batches * self.world_size
        if len(batches) > wanted and self.probabilities is None:
            batches = self._first_batches
        batches = [batches[i] for i in rng.permutation(len(batches))][:wanted]
        return _divided(batches, wanted)

    @cached_property
    def _first_batches(self) -> list[np.ndarray]:
        return self._cut(self._drawn(np.random.default_rng([self.seed, 0])))

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        if not self.window:
            return self._cut_as_it_is(order)
        batches: list[np.ndarray] = []
        left = order[:0]
        for start in range(0, len(order), self.window):
            rows = np.concatenate([left, order[start : start + self.window]])
            batches += self._cut_as_it_is(rows[np.argsort(self.totals[rows], kind="stable")])
            # The last batch is not full: its rows wait for those of the next window.
            left = batches.pop()
        return [*batches, left]

    def _cut_as_it_is(self, order: np.ndarray) -> list[np.ndarray]:
        rows = self.sizes[order].tolist()
        if self.packed_length is None:
            ends = _padded_ends(rows, self.token_budget, self.batch_size)
        else:
            n_sequences = self.token_budget // self.packed_length
            lengths = [row[0] for row in rows]
            ends = _packed_ends(lengths, self.packed_length, n_sequences, self.batch_size)
        return np.split(order, ends)

    def _plan_identity(self) -> dict[str, Any]:
        return super()._plan_identity() | {
            "token_budget": self.token_budget,
            "packed_length": self.packed_length,
            "processes": self.world_size,
            "tokens": int(self.totals.sum()),
        }


def _padded_ends(rows: Sequence[Sequence[int]], most: int, most_rows: int) -> list[int]:
    """Return where batches end, but for the last: the next row would be one too many."""
    ends, n_rows, longest = [], 0, [0] * len(rows[0])
    for place, row in enumerate(rows):
        grown = [max(pair) for pair in zip(longest, row, strict=True)]
        if n_rows == most_rows or (n_rows + 1) * sum(grown) > most:
            ends.append(place)
            n_rows, grown = 0, row
        n_rows, longest = n_rows + 1, grown
    return ends


def _packed_ends(lengths: Sequence[int], length: int, most: int, most_rows: int) -> list[int]:
    """The same where rows share sequences."""
    ends, n_rows, sequences = [], 0, PackedSequences(length, most)
    for place, tokens in enumerate(lengths):
        if n_rows == most_rows or not sequences.put(place, tokens):
            ends.append(place)
            n_rows, sequences = 0, PackedSequences(length, most)
            sequences.put(place, tokens)
        n_rows += 1
    return ends


def _divided(batches: list[np.ndarray], wanted: int) -> list[np.ndarray]:
    """Cut the batches of most rows in two until there are as many as wanted."""
    batches = list(batches)
    heap = [(-len(batch), place) for place, batch in enumerate(batches)]
    heapq.heapify(heap)
    while len(batches) < wanted and heap[0][0] < -1:
        place = heap[0][1]
        half = len(batches[place]) // 2
        batches[place], rest = batches[place][:half], batches[place][half:]
        heapq.heapreplace(heap, (-half, place))
        heapq.heappush(heap, (-len(rest), len(batches)))
        batches.append(rest)
    # Fewer rows than batches: every process must take every step, so that rows are repeated.
    return batches + [batches[i % len(batches)][:1] for i in range(wanted - len(batches))]


def padding_share(
    batches: Sequence[Sequence[int] | np.ndarray],
    sizes: Int64[np.ndarray, "N S"],
    packed_length: int | None = None,
) -> float:
    """Return which part of the positions of batches is padding."""
    positions = tokens = 0
    for batch in batches:
        own = sizes[np.asarray(batch)]
        tokens += own.sum()
        if packed_length is None:
            positions += len(own) * own.max(0).sum()
        else:
            packed = PackedSequences.of(own[:, 0].tolist(), packed_length)
            positions += len(packed) * max(own[rows].sum() for rows in packed)
    return float(1 - tokens / positions)
