"""Demonstrations of some levels in memory, and batches of whole episodes padded to one length."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from envs.bot import Demonstration
from envs.demonstration_file import load_demonstrations
from envs.vocabulary import encode
from mttl.babyai.rl.missions import without_padding
from mttl.io.errors import ConfigError, nearest

RECORD = "`mttl babyai record`"


@dataclass(frozen=True)
class LevelDemonstrations:
    """The E demonstrations of one level, their F frames laid end to end.

    Attributes:
        images: What was seen before each action.
        actions: What was done.
        lengths: Frames of each demonstration.
        missions: Tokens of what each was asked, padded with 0.
    """

    images: UInt8[np.ndarray, "F 7 7 3"]
    actions: UInt8[np.ndarray, "F"]
    lengths: Int64[np.ndarray, "E"]
    missions: UInt8[np.ndarray, "E M"]

    def frames(self, episodes: Int[np.ndarray, "N"], n_steps: int) -> Int64[np.ndarray, "S N"]:
        """Return where the steps of some episodes are; the last repeats where one has ended."""
        starts = np.cumsum(self.lengths) - self.lengths
        steps = np.arange(n_steps)[:, None]
        return starts[episodes] + np.minimum(steps, self.lengths[episodes] - 1)


@dataclass(frozen=True)
class DemonstrationBatch:
    """N whole demonstrations of each of T levels; the task axis is first.

    Attributes:
        images: What was seen in each of S steps, the most that one of them takes.
        missions: Tokens of what each was asked.
        actions: What was done.
        mask: The demonstration had not ended; where it had, the other fields only pad.
    """

    images: UInt8[Tensor, "T S N 7 7 3"]
    missions: UInt8[Tensor, "T N M"]
    actions: Int64[Tensor, "T S N"]
    mask: Bool[Tensor, "T S N"]

    def to(self, device: torch.device) -> "DemonstrationBatch":
        """Return the batch on a device."""
        return DemonstrationBatch(**{name: x.to(device) for name, x in vars(self).items()})


def read_demonstrations(path: str | Path, levels: Sequence[str]) -> list[LevelDemonstrations]:
    """Read the demonstrations of some levels from a file.

    Returns:
        Those of each level, in the order of the names.

    Raises:
        ConfigError: If there is no such file, it is damaged, or it lacks a level.
    """
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
            f"rl.demonstrations: {error}. Name another file, or record it again with {RECORD}"
        ) from error
    there = ", ".join(f"{level} ({n})" for level, n in counts.items())
    raise ConfigError(
        f"rl.demonstrations: '{path}' has none of {', '.join(missing)}, only of {there}. Record "
        f"all levels with {RECORD}, or leave the others out of rl.levels"
    )


def pad_episodes(
    demonstrations: Sequence[LevelDemonstrations], chosen: Int[np.ndarray, "T N"]
) -> DemonstrationBatch:
    """Return some demonstrations as a batch, all as long as the longest of them."""
    pairs = list(zip(demonstrations, chosen, strict=True))
    lengths = np.stack([level.lengths[episodes] for level, episodes in pairs])  # (T, N)
    n_steps = int(lengths.max())
    frames = [level.frames(episodes, n_steps) for level, episodes in pairs]
    images = [level.images[own] for (level, _), own in zip(pairs, frames, strict=True)]
    actions = [level.actions[own] for (level, _), own in zip(pairs, frames, strict=True)]
    missions = [level.missions[episodes] for level, episodes in pairs]
    return DemonstrationBatch(
        images=torch.from_numpy(np.stack(images)),
        missions=without_padding(torch.from_numpy(np.stack(missions))),
        actions=torch.from_numpy(np.stack(actions).astype(np.int64)),
        mask=torch.from_numpy(np.arange(n_steps)[:, None] < lengths[:, None]),
    )


def _of_level(record: Sequence[Demonstration], level: str) -> LevelDemonstrations:
    own = [episode for episode in record if episode.level == level]
    return LevelDemonstrations(
        images=np.concatenate([episode.images for episode in own]),
        actions=np.concatenate([episode.actions for episode in own]),
        lengths=np.array([len(episode.actions) for episode in own], np.int64),
        missions=np.stack([encode(episode.mission) for episode in own]),
    )
