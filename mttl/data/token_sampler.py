"""Sample training batches by a token budget: many short rows, or few long ones.

Rows are drawn as in `TaskBatchSampler`, optionally sorted by length within windows, and split into
batches within the token budget, padding included. Batches are shuffled; step s of R processes has
batches s R … s R + R - 1.

Schedules need the number of batches, which differs between epochs. It is that of the first epoch
plus 2 %. An epoch with fewer batches splits its largest ones; an epoch with more uses the batches
of the first in another order (or drops the excess, if tasks are drawn with replacement).
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


class TokenBatchSampler(TaskBatchSampler):
    """Yields the batches of one process, each within a token budget.

    ``sizes`` are the tokens of every row in each stack: (N, 2) for encoder–decoders, (N, 1) for
    decoder-only models. The budget of a batch counts rows × maximum tokens in each stack, or
    sequences × their length for packed rows, whose sequences have at most ``packed_length`` tokens;
    ``batch_size`` is the maximum number of rows.
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
        self.n_steps = math.ceil(len(self._first_batches) * 1.02 / self.world_size)
        self.n_batches = self.n_steps

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.global_batches(self.epoch)
        for i in range(self.batch, self.n_batches):
            yield batches[i * self.world_size + self.rank].tolist()

    def is_filler(self, batch: int) -> bool:
        """Return False: every batch has rows that count."""
        return False

    def global_batches(self, epoch: int) -> list[Int64[np.ndarray, "B"]]:
        """Return the rows of each batch of all processes in an epoch, by step."""
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
            # The last batch is incomplete; its rows join the next window.
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
    """Return the ends of all batches except the last, within budget and row limit."""
    ends, n_rows, longest = [], 0, [0] * len(rows[0])
    for place, row in enumerate(rows):
        grown = [max(pair) for pair in zip(longest, row, strict=True)]
        if n_rows == most_rows or (n_rows + 1) * sum(grown) > most:
            ends.append(place)
            n_rows, grown = 0, row
        n_rows, longest = n_rows + 1, grown
    return ends


def _packed_ends(lengths: Sequence[int], length: int, most: int, most_rows: int) -> list[int]:
    """Return the ends of batches as in `_padded_ends`, for packed rows."""
    ends, n_rows, sequences = [], 0, PackedSequences(length, most)
    for place, tokens in enumerate(lengths):
        if n_rows == most_rows or not sequences.put(place, tokens):
            ends.append(place)
            n_rows, sequences = 0, PackedSequences(length, most)
            sequences.put(place, tokens)
        n_rows += 1
    return ends


def _divided(batches: list[np.ndarray], wanted: int) -> list[np.ndarray]:
    """Split the largest batches until there are ``wanted`` ones."""
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
    # With fewer rows than batches, rows are repeated, because all processes must take every step.
    return batches + [batches[i % len(batches)][:1] for i in range(wanted - len(batches))]


def padding_share(
    batches: Sequence[Sequence[int] | np.ndarray],
    sizes: Int64[np.ndarray, "N S"],
    packed_length: int | None = None,
) -> float:
    """Return the fraction of positions that are padding."""
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
