"""Results of policies on the levels that they were adapted to, and their table."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from rich.table import Table

from mttl.io.record import Record
from mttl.runtime.text_table import TextTable

CHOICES = ("greedy", "sampled")


class LevelJob(NamedTuple):
    """An adaptation to a level, with a seed."""

    level: str
    seed: int

    def __str__(self) -> str:
        """Name the job in a message."""
        return f"{self.level}, seed {self.seed}"


class LevelResult(Record):
    """How one adaptation ended.

    Attributes:
        level: The new level.
        seed: Of its environments, actions and noise.
        mode: What was trained.
        greedy: Success rate on the episodes of evaluation, taking the most likely action.
        sampled: The same, drawing actions.
        greedy_steps: Mean number of steps.
        sampled_steps: The same, drawing actions.
        episodes: Episodes that were played to adapt.
        frames: Steps of them.
        solved_after: Episodes until the success rate that counts as solved; None if never.
        n_trained: Parameters that were trained.
    """

    level: str
    seed: int
    mode: str
    greedy: float
    sampled: float
    greedy_steps: float
    sampled_steps: float
    episodes: int
    frames: int
    solved_after: int | None
    n_trained: int

    @property
    def job(self) -> LevelJob:
        """The level and the seed."""
        return LevelJob(self.level, self.seed)


def level_table(results: Sequence[LevelResult], title: str) -> Table:
    """Return a row per level: success (%) and episodes to solve it, means over seeds."""
    headings = ("seeds", *CHOICES, "episodes", "solved after")
    table = TextTable(title).words("level").numbers(*headings)
    for level in dict.fromkeys(result.level for result in results):
        rows = [result for result in results if result.level == level]
        solved = [row.solved_after for row in rows if row.solved_after is not None]
        after = f"{fmean(solved):,.0f}" if solved else "–"
        if solved and len(solved) < len(rows):
            after += f" ({len(solved)} of {len(rows)})"
        rates = [f"{100 * fmean(getattr(row, name) for row in rows):.1f}" for name in CHOICES]
        episodes = f"{fmean(row.episodes for row in rows):,.0f}"
        table.add_row(level, str(len(rows)), *rates, episodes, after)
    return table
