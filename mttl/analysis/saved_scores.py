"""Scores in the tables of a run."""

from pathlib import Path
from typing import NamedTuple

from mttl.io.errors import CheckpointError
from mttl.io.reading import read_table, to_number


class SavedScore(NamedTuple):
    """A row of ``results.csv`` or ``baselines.csv``, as a fraction; NaN if it is undefined."""

    task: str
    split: str  # of policies the choice of actions, greedy or sampled
    sample: str
    metric: str
    score: float
    baseline: str

    @property
    def percent(self) -> float:
        """The score in %, or the mean steps of a policy."""
        return self.score if self.metric == "steps" else 100 * self.score


def saved_scores(path: Path) -> list[SavedScore]:
    """Return the rows of a table of scores; none if it has not been written."""
    columns = ["task", "split", "sample", "metric", "score"]
    rows = read_table(path, CheckpointError, columns) if path.is_file() else []
    return [
        SavedScore(
            *(row["task"], row["sample" if row["split"] == "evaluation" else "split"]),
            *(row["sample"], row["metric"]),
            score=to_number(row["score"], f"'{path}': a score", CheckpointError),
            baseline=row.get("baseline", ""),
        )
        for row in rows
    ]
