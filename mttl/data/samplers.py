r"""Sample the rows of training batches, as a pure function of (seed, epoch, batch).

Four kinds, for tasks t with n_t rows out of N:

* `proportional`: every row once per epoch, shuffled;
* `uniform`: each row's task drawn with p_t = 1/T;
* `temperature`: each row's task drawn with p_t ∝ n_t^(1/τ) (τ = 1: by size; τ → ∞: uniform);
* `homogeneous`: every batch has one task, drawn with p_t ∝ n_t.

An epoch has ⌈N / (batch_size × world_size)⌉ batches for all kinds, so that schedules are
comparable. Tasks are drawn with replacement; the rows of a task are drawn without replacement until
all have been used.

With `lengths`, the rows of a window of batches are sorted by length and split into batches, which
are then shuffled: batches have rows of similar length and little padding.

Processes share one plan: step s of all ranks together has the rows that step s of one process with
the same global batch would have, also if a step has several batches.

References:
    Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer, JMLR 2020, arXiv:1910.10683 (temperature-scaled mixing, section 3.5.2).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from mttl.io.errors import CheckpointError


class TaskBatchSampler(Sampler[list[int]]):
    """Yields the batches of one process from its position to the end of the epoch.

    The position is where the next `iter` begins; only `set_position` moves it, because data loaders
    prefetch batches.

    ``batch_size`` counts rows per batch and process, ``global_batch_size`` instead rows per step of
    all processes, with ``n_parts`` batches per process; a batch without rows repeats one and must
    not be counted (`is_filler`). ``temperature`` is τ. ``length_window`` is the number of batches
    whose rows are sorted by their ``lengths`` together; 0: unsorted. The seed is equal on all
    ranks.
    """

    def __init__(
        self,
        task_ids: Sequence[int] | np.ndarray,
        *,
        batch_size: int,
        kind: str = "proportional",
        temperature: float = 1.0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        lengths: Sequence[int] | np.ndarray | None = None,
        length_window: int = 0,
        global_batch_size: int | None = None,
        n_parts: int = 1,
    ):
        ids = np.asarray(task_ids, dtype=np.int64)
        self.lengths = np.asarray(lengths if length_window else [], dtype=np.int64)
        self.length_window = length_window
        self.n_parts = n_parts
        self.global_batch_size = global_batch_size or batch_size * world_size * n_parts
        self.n_rows = ids.size
        self.rank, self.world_size, self.seed, self.kind = rank, world_size, seed, kind
        self.tasks, sizes = np.unique(ids, return_counts=True)
        self.rows_of_task = [np.flatnonzero(ids == task) for task in self.tasks]
        exponents = {"uniform": math.inf, "temperature": temperature, "homogeneous": 1.0}
        self.probabilities = (
            None if kind == "proportional" else task_probabilities(sizes, exponents[kind])
        )
        # Ranks without a row of the last batch repeat one, because all must take every step.
        self.n_steps = math.ceil(self.n_rows / self.global_batch_size)
        self.n_batches = self.n_steps * n_parts
        # Rows drawn per epoch.
        self.n_drawn = self.n_steps * self.global_batch_size
        self.epoch = self.batch = 0

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, at any position."""
        return self.n_batches

    def __iter__(self) -> Iterator[list[int]]:
        order, size = self.plan(self.epoch), self.global_batch_size
        for i in range(self.batch, self.n_batches):
            step, place = self._place(i)
            batch = order[step * size : (step + 1) * size]
            share = batch[place :: self.n_parts * self.world_size]
            if share.size == 0:
                share = batch[[place % batch.size]]
            yield share.tolist()

    def is_filler(self, batch: int) -> bool:
        """Return whether a batch only repeats a row because none is left."""
        step, place = self._place(batch)
        planned = self.n_rows if self.probabilities is None else self.n_drawn
        return step * self.global_batch_size + place >= planned

    def _place(self, batch: int) -> tuple[int, int]:
        """Return the step of a batch, and its index among the step's batches on all processes."""
        step, part = divmod(batch, self.n_parts)
        return step, part * self.world_size + self.rank

    def plan(self, epoch: int) -> np.ndarray:
        """Return the rows of all global batches of an epoch, in order."""
        rng = np.random.default_rng([self.seed, epoch])
        order = self._drawn(rng)
        return self._sorted_in_windows(order, rng) if self.length_window else order

    def _drawn(self, rng: np.random.Generator) -> np.ndarray:
        if self.probabilities is None:
            return rng.permutation(self.n_rows)
        if self.kind == "homogeneous":
            tasks = rng.choice(len(self.tasks), size=self.n_steps, p=self.probabilities)
            tasks = np.repeat(tasks, self.global_batch_size)
        else:
            tasks = rng.choice(len(self.tasks), size=self.n_drawn, p=self.probabilities)
        order = np.empty(len(tasks), dtype=np.int64)
        for task, rows in enumerate(self.rows_of_task):
            slots = np.flatnonzero(tasks == task)
            n_decks = math.ceil(slots.size / rows.size)
            decks = [rng.permutation(rows) for _ in range(n_decks)]
            order[slots] = np.concatenate([*decks, rows[:0]])[: slots.size]
        return order

    def _sorted_in_windows(self, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        size = self.global_batch_size
        window = self.length_window * size
        # An incomplete last batch stays last, because all others must be complete.
        full = order.size - order.size % size
        parts = []
        for start in range(0, full, window):
            rows = order[start : min(start + window, full)]
            batches = rows[np.argsort(self.lengths[rows], kind="stable")].reshape(-1, size)
            parts.append(batches[rng.permutation(len(batches))].ravel())
        return np.concatenate([*parts, order[full:]])

    def set_position(self, epoch: int, batch: int = 0) -> None:
        """Set the start of the next `iter`; a position past the end is the next epoch."""
        self.epoch, self.batch = (epoch + 1, 0) if batch >= self.n_batches else (epoch, batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in steps, and the settings of the plan.

        An interrupted step is repeated, because its gradients are lost.
        """
        step = self.batch // self.n_parts
        return {"epoch": self.epoch, "batch": step, "plan": self._plan_identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position.

        Raises a `CheckpointError` if it lies within an epoch of other data.
        """
        mine, saved = self._plan_identity(), state["plan"]
        if state["batch"] and saved != mine:
            pairs = {key: (saved.get(key), own) for key, own in mine.items()}
            differs = ", ".join(f"{k} {x} there, {y} here" for k, (x, y) in pairs.items() if x != y)
            raise CheckpointError(
                f"the checkpoint was saved at batch {state['batch']} of epoch {state['epoch']}, "
                f"which cannot be continued with other data settings: {differs}. Resume with the "
                "original settings."
            )
        self.set_position(state["epoch"], state["batch"] * self.n_parts)

    def _plan_identity(self) -> dict[str, Any]:
        return {
            "n_rows": self.n_rows,
            "global_batch_size": self.global_batch_size,
            "n_batches": self.n_steps,
            "seed": self.seed,
            "kind": self.kind,
            "length_window": self.length_window,
            "probabilities": None
            if self.probabilities is None
            else [round(p, 9) for p in self.probabilities.tolist()],
        }


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


def task_probabilities(sizes: Sequence[int] | np.ndarray, temperature: float) -> np.ndarray:
    """Return p_t = n_t^(1/temperature) / Σ n^(1/temperature), without overflow."""
    scores = np.log(np.asarray(sizes, dtype=np.float64)) / temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def evaluation_batches(
    lengths: Sequence[int] | np.ndarray, *, batch_size: int, rank: int = 0, world_size: int = 1
) -> list[list[int]]:
    """Distribute every row once over the ranks, in batches of similar length.

    Rows are sorted by length and split into global batches of almost equal size in a fixed random
    order, so that the first batches have all lengths. Every rank has the same number of batches,
    some of which may be empty.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    n_batches = math.ceil(len(order) / (batch_size * world_size))
    if n_batches == 0:
        return []
    parts = np.array_split(order, n_batches)
    shuffled = np.random.default_rng(0).permutation(n_batches)
    return [parts[i][rank::world_size].tolist() for i in shuffled]
