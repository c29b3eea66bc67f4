"""Demonstrations as training data, in batches of whole episodes; one epoch is one pass.

Every batch has the same number of episodes of every level. The level with most episodes determines
the length of a pass; other levels repeat theirs, in another order each time.

Episodes of a batch are padded to the longest. To save padding, the episodes of each level are
sorted by length within a window of batches.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from envs.demonstrations import Demonstration, load_demonstrations
from envs.vocabulary import encode
from mttl.babyai.rl.sequences import without_padding
from mttl.io.errors import CheckpointError, ConfigError, nearest

RECORD = "`mttl babyai record`"
WINDOW = 16  # batches; larger windows would make the composition of batches less random


@dataclass(frozen=True)
class LevelDemonstrations:
    """The E demonstrations of one level, with concatenated frames F and an image per action."""

    images: UInt8[np.ndarray, "F 7 7 3"]
    actions: UInt8[np.ndarray, "F"]
    lengths: Int64[np.ndarray, "E"]
    missions: UInt8[np.ndarray, "E M"]


class DemonstrationBatch(NamedTuple):
    """N whole demonstrations of each of T levels, padded to the steps S of the longest.

    The mask is false for padding.
    """

    images: UInt8[Tensor, "T S N 7 7 3"]
    missions: UInt8[Tensor, "T N M"]
    actions: Int64[Tensor, "T S N"]
    mask: Bool[Tensor, "T S N"]


def read_demonstrations(path: str | Path, levels: Sequence[str]) -> list[LevelDemonstrations]:
    """Return the demonstrations of some levels from a file, in the order of the names."""
    path = Path(path)
    try:
        record = load_demonstrations(path)
        counts = Counter(episode.level for episode in record)
        missing = [level for level in levels if level not in counts]
        if not missing:
            return [_of_level(record, level) for level in levels]
    except FileNotFoundError:
        hint = nearest(path.name, (file.name for file in path.parent.glob("*.npz")))
        raise ConfigError(
            f"rl.demonstrations: the file '{path}' does not exist.{hint} Record one with {RECORD}"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"rl.demonstrations: {error}. Use another file, or record it again with {RECORD}"
        ) from error
    there = ", ".join(f"{level} ({n})" for level, n in counts.items())
    raise ConfigError(
        f"rl.demonstrations: '{path}' has no demonstrations of {', '.join(missing)}; it has those "
        f"of {there}. Record all levels with {RECORD}, or remove the others from rl.levels"
    )


def _of_level(record: Sequence[Demonstration], level: str) -> LevelDemonstrations:
    own = [episode for episode in record if episode.level == level]
    return LevelDemonstrations(
        images=np.concatenate([episode.images for episode in own]),
        actions=np.concatenate([episode.actions for episode in own]),
        lengths=np.array([len(episode.actions) for episode in own], np.int64),
        missions=np.stack([encode(episode.mission, level) for episode in own]),
    )


def pad_episodes(
    demonstrations: Sequence[LevelDemonstrations], chosen: Int[np.ndarray, "T N"]
) -> DemonstrationBatch:
    """Return some demonstrations as a batch, padded to the longest."""
    pairs = list(zip(demonstrations, chosen, strict=True))
    lengths = np.stack([level.lengths[episodes] for level, episodes in pairs])  # (T, N)
    steps = np.arange(lengths.max())[:, None]
    frames = []
    for level, episodes in pairs:
        starts = np.cumsum(level.lengths) - level.lengths
        # Padding repeats the last step.
        last = level.lengths[episodes] - 1
        frames.append((level, starts[episodes] + np.minimum(steps, last)))
    missions = np.stack([level.missions[episodes] for level, episodes in pairs])
    actions = np.stack([level.actions[own] for level, own in frames])
    return DemonstrationBatch(
        images=torch.from_numpy(np.stack([level.images[own] for level, own in frames])),
        missions=without_padding(torch.from_numpy(missions)),
        actions=torch.from_numpy(actions.astype(np.int64)),
        mask=torch.from_numpy(steps < lengths[:, None]),
    )


class DemonstrationLoader:
    """A resumable loader of batches of demonstrations.

    A pass depends only on the seed and its number; processes take batches of one plan in turn.

    Attributes:
        before_batch: Hook before every batch, as in `mttl.data.loader.ResumableLoader`.
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
        self._n_episodes = [len(level.lengths) for level in self.levels]

    def __len__(self) -> int:
        """Return the number of batches of a pass in every process."""
        return math.ceil(max(self._n_episodes) / (self.batch_size * self.n_ranks))

    def __iter__(self) -> Iterator[DemonstrationBatch]:
        number, first = self._pass, self._next
        for batch, episodes in enumerate(self.plan(number)[first:], first):
            self.before_batch()
            # After the last batch the position is the start of the next pass.
            last = batch + 1 == len(self)
            self._pass, self._next = (number + 1, 0) if last else (number, batch + 1)
            yield pad_episodes(self.levels, episodes)
        self.before_batch()

    def plan(self, number: int) -> Int64[np.ndarray, "B T N"]:
        """Return the indices of the demonstrations in this process's batches of a pass."""
        generator = np.random.default_rng([self.seed, number])
        n_batches = len(self) * self.n_ranks
        batches = np.stack(
            [_deal(level.lengths, self.batch_size, n_batches, generator) for level in self.levels],
            axis=1,
        )
        return batches[generator.permutation(n_batches)][self.rank :: self.n_ranks]

    def state(self) -> dict[str, Any]:
        """Return the position of the next batch, and the numbers of demonstrations."""
        return {"pass": self._pass, "next": self._next, "n_episodes": self._n_episodes}

    def load_state(self, state: dict[str, Any], of_other: bool = False) -> None:
        """Set the position of the next `iter`, which is equal in all processes."""
        if state["n_episodes"] != self._n_episodes:
            raise CheckpointError(
                f"the levels have {self._n_episodes} demonstrations, but had "
                f"{state['n_episodes']} in the checkpoint; resume with the original file of "
                "rl.demonstrations"
            )
        self._pass, self._next = state["pass"], state["next"]


def _deal(
    lengths: Int64[np.ndarray, "E"], batch_size: int, n_batches: int, generator: np.random.Generator
) -> Int64[np.ndarray, "B N"]:
    """Return batches of one level's episodes, in which all are used before any is repeated."""
    n_cards, window = n_batches * batch_size, WINDOW * batch_size
    decks = [generator.permutation(len(lengths)) for _ in range(math.ceil(n_cards / len(lengths)))]
    cards = np.concatenate(decks)[:n_cards]
    for start in range(0, n_cards, window):
        own = cards[start : start + window]
        cards[start : start + window] = own[np.argsort(lengths[own], kind="stable")]
    return cards.reshape(n_batches, batch_size)
