"""Demonstrations as training data: one epoch is one pass over them, in batches of whole episodes.

Every batch has the same number of episodes of every level. The level that has most says how many a
pass takes; the others begin again, each time in another order, until they have as many. What the
last batch lacks is filled up in the same way.

Episodes of a batch are padded to the longest, so those of a window of batches are sorted by length
first, each level for itself: the short ones of all levels meet in one batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
from jaxtyping import Int64

from mttl.babyai.level_demonstrations import DemonstrationBatch, LevelDemonstrations, pad_episodes
from mttl.io.errors import CheckpointError

WINDOW = 16  # batches; more would leave less to chance about which episodes meet


class DemonstrationLoader:
    """Hands out the batches of a pass from its position on, and keeps that position.

    Passes are functions of the seed and their number. Processes share one plan: each takes its
    batches of it in turn.

    Attributes:
        before_batch: As in `mttl.data.loader.ResumableLoader`.
    """

    def __init__(
        self,
        levels: Sequence[LevelDemonstrations],
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        self.levels = list(levels)
        self.batch_size, self.seed = batch_size, seed
        self.rank, self.n_ranks = rank, n_ranks
        self.before_batch: Callable[[], object] = lambda: None
        self._pass = self._next = 0

    def __len__(self) -> int:
        """Return the number of batches of a whole pass, in every process."""
        most = max(len(level.lengths) for level in self.levels)
        return math.ceil(most / (self.batch_size * self.n_ranks))

    def __iter__(self) -> Iterator[DemonstrationBatch]:
        number, first = self._pass, self._next
        for batch, episodes in enumerate(self.plan(number)[first:], first):
            self.before_batch()
            # With the last batch the position is the next pass.
            last = batch + 1 == len(self)
            self._pass, self._next = (number + 1, 0) if last else (number, batch + 1)
            yield pad_episodes(self.levels, episodes)
        self.before_batch()

    def plan(self, number: int) -> Int64[np.ndarray, "B T N"]:
        """Return which demonstrations make up this process's batches of a pass."""
        generator = np.random.default_rng([self.seed, number])
        n_batches = len(self) * self.n_ranks
        batches = np.stack(
            [_deal(level.lengths, self.batch_size, n_batches, generator) for level in self.levels],
            axis=1,
        )
        return batches[generator.permutation(n_batches)][self.rank :: self.n_ranks]

    def state(self) -> dict[str, Any]:
        """Return the position of the next batch, and what it depends on."""
        return {"pass": self._pass, "next": self._next, "n_episodes": self._n_episodes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to a saved position; the next `iter` begins there.

        Raises:
            CheckpointError: If it was saved with other numbers of demonstrations.
        """
        if state["n_episodes"] != self._n_episodes():
            raise CheckpointError(
                f"the levels have {self._n_episodes()} demonstrations, but {state['n_episodes']} "
                "when the checkpoint was saved; resume with the file of rl.demonstrations that the "
                "run began with"
            )
        self._pass, self._next = state["pass"], state["next"]

    def _n_episodes(self) -> list[int]:
        return [len(level.lengths) for level in self.levels]


class DemonstrationDataModule(pl.LightningDataModule):
    """Demonstrations as Lightning's training data; its state is that of the loader.

    Attributes:
        loader: Made when the trainer has said which process this is.
    """

    loader: DemonstrationLoader

    def __init__(self, levels: Sequence[LevelDemonstrations], batch_size: int, *, seed: int):
        super().__init__()
        self.levels, self.batch_size, self.seed = levels, batch_size, seed

    def setup(self, stage: str) -> None:
        """Make the loader of this process."""
        assert self.trainer is not None
        self.loader = DemonstrationLoader(
            self.levels,
            self.batch_size,
            seed=self.seed,
            rank=self.trainer.global_rank,
            n_ranks=self.trainer.world_size,
        )

    def train_dataloader(self) -> DemonstrationLoader:
        """Return the loader."""
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on exactly."""
        return self.loader.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.loader.load_state(state_dict)


def _deal(
    lengths: Int64[np.ndarray, "E"], batch_size: int, n_batches: int, generator: np.random.Generator
) -> Int64[np.ndarray, "B N"]:
    """Return batches of one level's episodes, every one once before any comes again."""
    n_cards, window = n_batches * batch_size, WINDOW * batch_size
    decks = [generator.permutation(len(lengths)) for _ in range(math.ceil(n_cards / len(lengths)))]
    cards = np.concatenate(decks)[:n_cards]
    for start in range(0, n_cards, window):
        own = cards[start : start + window]
        cards[start : start + window] = own[np.argsort(lengths[own], kind="stable")]
    return cards.reshape(n_batches, batch_size)
