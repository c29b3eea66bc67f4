"""When a task counts as learned: the number of episodes until 99 % of them succeed.

Every update writes a row: how many episodes have ended so far, and each level's success rate over
its last 100 (`EpisodeLog`). Rates are averaged over levels and smoothed by the mean of 100 rows,
half of them before and half after; the first row that reaches 99 % counts. For one level that is
the rule of BabyAI's code, whose rows hold all episodes of an update and at least 64, and which
smooths over 10 rows for GoToRedBallGrey. Polytropon names no rule.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

# A rate of exactly the threshold counts, in whatever order its terms were added.
ROUNDING = 1e-9


class EpisodeLog:
    """Counts episodes and frames of T levels and remembers the last episodes of each.

    Means are over ``window`` episodes of a level, and NaN until so many have ended: a rate over a
    few would look like one over many. Frames are those of unfinished episodes, too.
    """

    episodes: Int[np.ndarray, "T"]
    frames: Int[np.ndarray, "T"]
    last: Float[np.ndarray, "T window 3"]

    def __init__(self, levels: Sequence[str], window: int = 100) -> None:
        self.levels = tuple(levels)
        self.window = window
        self.episodes = np.zeros(len(levels), dtype=np.int64)
        self.frames = np.zeros(len(levels), dtype=np.int64)
        # Success, reward and steps of the last episodes; number e is at place e % window.
        self.last = np.zeros((len(levels), window, 3))

    def update(
        self,
        terminated: Bool[np.ndarray, "T N"],
        truncated: Bool[np.ndarray, "T N"],
        reward: Float[np.ndarray, "T N"],
        length: Int[np.ndarray, "T N"],
    ) -> None:
        """Take in one step of all environments; length and reward are read where an episode ended.

        An episode succeeds if it terminates with a positive reward: BabyAI rewards nothing else,
        and an episode can also terminate in failure. Episodes that end in the same step count in
        the order of their slots.
        """
        ended = terminated | truncated
        level, slot = np.nonzero(ended)
        earlier = np.cumsum(ended, axis=1)[level, slot] - 1  # in this step, of the same level
        place = (self.episodes[level] + earlier) % self.window
        values = np.stack([terminated & (reward > 0), reward, length], axis=-1)
        # Where a step ends more episodes than the window holds, numpy keeps the last.
        self.last[level, place] = values[level, slot]
        self.episodes += ended.sum(axis=1)
        self.frames += ended.shape[1]

    def row(self) -> dict[str, float]:
        """Return a row of a log: totals, and for each level ``success/``, ``reward/``, ``steps/``.

        ``success`` is the mean over levels.
        """
        full = self.episodes >= self.window
        means = np.where(full[:, None], self.last.mean(axis=1), np.nan).T
        row = {"episodes": float(self.episodes.sum()), "frames": float(self.frames.sum())}
        row["success"] = float(means[0].mean())
        for name, values in zip(("success", "reward", "steps"), means.tolist(), strict=True):
            row |= {f"{name}/{level}": x for level, x in zip(self.levels, values, strict=True)}
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, as plain lists and numbers."""
        return {name: getattr(self, name).tolist() for name in ("episodes", "frames", "last")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name, values in state.items():
            getattr(self, name)[:] = values


def smooth(rates: Float[np.ndarray, "R T"], rows: int) -> Float[np.ndarray, "R T"]:
    """Return the centred rolling mean: over ``rows // 2`` rows before each, itself, and the rest.

    Rows without a whole window around them, or with NaN in it, are NaN.
    """
    smoothed = np.full(rates.shape, np.nan)
    if rows <= len(rates):
        windows = np.lib.stride_tricks.sliding_window_view(rates, rows, axis=0)
        smoothed[rows // 2 : rows // 2 + len(windows)] = windows.mean(-1)
    return smoothed


def episodes_to(
    episodes: Int[np.ndarray, "R"],
    rates: Float[np.ndarray, "R T"],
    *,
    threshold: float = 0.99,
    smoothing: int = 100,
) -> int | None:
    """Return after how many episodes the mean success rate first reached a threshold.

    Args:
        episodes: Of all levels, ended until each row of the log.
        rates: Success rate of each level at that row, over its last episodes.
        threshold: What has to be reached.
        smoothing: Rows of the centred rolling mean; 1 takes the first lucky row.

    Returns:
        The episodes of that row, or None if there is none.

    References:
        Hui, Chevalier-Boisvert, Bahdanau and Bengio, *BabyAI 1.1*, 2020, arXiv:2007.12770 (the
        measure). Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, table 3 (across levels).
    """
    holds = smooth(rates, smoothing).mean(-1) >= threshold - ROUNDING
    return int(episodes[np.argmax(holds)]) if holds.any() else None
