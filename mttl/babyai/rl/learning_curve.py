"""When a task counts as learned: the number of episodes until 99 % of them succeed.

The rule. Every update writes a row: how many episodes have ended so far, and each level's success
rate over its last 100 (`mttl.babyai.rl.episode_log.EpisodeLog`). Rates are averaged over levels and
smoothed by the mean of 100 rows, half of them before and half after; the first row that reaches
99 % counts. For one level that is the rule of BabyAI's code, whose rows hold all episodes of an
update and at least 64, and which smooths over 10 rows for GoToRedBallGrey, learned within few.
Polytropon names no rule: its table 3 has levels learned earlier than its smoothed figure 3 does.

Without smoothing (``smoothing=1``) the first lucky row counts. With eight levels whose true rates
rise from 0.95 to 1 in 2000 rows, the mean first reaches 0.99 where the true rate is 0.977; smoothed
over 100 rows, at 0.990.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

# A rate of exactly the threshold counts, in whatever order its terms were added.
ROUNDING = 1e-9


def reached(
    rates: Float[np.ndarray, "*rows T"], threshold: float = 0.99
) -> Bool[np.ndarray, "*rows"]:
    """Return where the mean success rate of levels reaches a threshold."""
    return np.asarray(rates.mean(-1) >= threshold - ROUNDING)


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
        smoothing: Rows of the centred rolling mean; 1 takes the first row that reaches.

    Returns:
        The episodes of that row, or None if there is none.

    References:
        Hui, Chevalier-Boisvert, Bahdanau and Bengio, *BabyAI 1.1*, 2020, arXiv:2007.12770 (the
        measure). Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, table 3 (across levels).
    """
    holds = reached(smooth(rates, smoothing), threshold)
    return int(episodes[np.argmax(holds)]) if holds.any() else None
