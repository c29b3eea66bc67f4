"""The number of episodes until a success rate of 99 %, as a measure of sample efficiency.

Every update logs a row: the number of finished episodes, and each level's success rate over its
last 100 (`EpisodeLog`). Rates are averaged over levels and over a centred window of 100 rows; the
first row that reaches 99 % counts. For one level this is the rule of BabyAI's code, whose rows have
all episodes of an update and at least 64, and which smooths over 10 rows for GoToRedBallGrey.
Polytropon's paper has no rule.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

# Tolerance for rates that equal the threshold up to rounding.
ROUNDING = 1e-9


class EpisodeLog:
    """Counts of episodes and frames of T levels, and means over the last episodes of each.

    Means are over ``window`` episodes of a level, and NaN before as many have ended. Frames include
    those of unfinished episodes.
    """

    def __init__(self, levels: Sequence[str], window: int = 100) -> None:
        self.levels = tuple(levels)
        self.window = window
        self.episodes: Int[np.ndarray, "T"] = np.zeros(len(levels), dtype=np.int64)
        self.frames: Int[np.ndarray, "T"] = np.zeros(len(levels), dtype=np.int64)
        # Success, reward and steps of the last episodes; episode e is at index e % window.
        self.last: Float[np.ndarray, "T window 3"] = np.zeros((len(levels), window, 3))

    def update(
        self,
        terminated: Bool[np.ndarray, "T N"],
        truncated: Bool[np.ndarray, "T N"],
        reward: Float[np.ndarray, "T N"],
        length: Int[np.ndarray, "T N"],
    ) -> None:
        """Add one step of all environments; length and reward count only for finished episodes.

        An episode succeeds if it terminates with a positive reward. Episodes that end in the same
        step count in the order of their slots.
        """
        ended = terminated | truncated
        level, slot = np.nonzero(ended)
        earlier = np.cumsum(ended, axis=1)[level, slot] - 1  # of the same level in this step
        place = (self.episodes[level] + earlier) % self.window
        values = np.stack([terminated & (reward > 0), reward, length], axis=-1)
        # If more episodes end than fit in the window, numpy keeps the last.
        self.last[level, place] = values[level, slot]
        self.episodes += ended.sum(axis=1)
        self.frames += ended.shape[1]

    def row(self) -> dict[str, float]:
        """Return a row of a log: totals, the mean ``success``, and the means of each level.

        Keys of levels are ``success/<level>``, ``reward/<level>`` and ``steps/<level>``.
        """
        full = self.episodes >= self.window
        means = np.where(full[:, None], self.last.mean(axis=1), np.nan).T
        row = {"episodes": float(self.episodes.sum()), "frames": float(self.frames.sum())}
        row["success"] = float(means[0].mean())
        for name, values in zip(("success", "reward", "steps"), means.tolist(), strict=True):
            row |= {f"{name}/{level}": x for level, x in zip(self.levels, values, strict=True)}
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and numbers."""
        return {name: getattr(self, name).tolist() for name in ("episodes", "frames", "last")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            getattr(self, name)[:] = values


def episodes_to(
    episodes: Int[np.ndarray, "R"],
    rates: Float[np.ndarray, "R T"],
    *,
    threshold: float = 0.99,
    smoothing: int = 100,
) -> int | None:
    """Return the number of episodes until the mean success rate reached a threshold, or None.

    Args:
        episodes: Number of finished episodes of all levels at each row of the log.
        rates: Success rate of each level at each row, over its last episodes.
        threshold: Success rate to reach.
        smoothing: Number of rows of the centred rolling mean; 1 means no smoothing. Incomplete
            windows do not count.

    References:
        Hui, Chevalier-Boisvert, Bahdanau and Bengio, *BabyAI 1.1*, 2020, arXiv:2007.12770 (the
        measure). Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, table 3 (across levels).
    """
    if len(rates) < smoothing:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(rates.mean(-1), smoothing)
    holds = windows.mean(-1) >= threshold - ROUNDING  # NaN does not
    return int(episodes[smoothing // 2 + np.argmax(holds)]) if holds.any() else None
