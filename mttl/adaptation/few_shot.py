"""An adaptation to few examples as a job, and what it scored."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class FewShotJob:
    """One adaptation: a task, one of its few-shot samples, and a seed."""

    task: str
    sample: int
    seed: int

    def __str__(self) -> str:
        """Name the job in a message."""
        return f"{self.task}, sample {self.sample}, seed {self.seed}"


@dataclass(frozen=True)
class FewShotResult:
    """What one job scored.

    Attributes:
        task: The new task.
        sample: Its few-shot sample.
        seed: Seed of noise and order.
        metric: Name of the metric.
        dev: Score on the development rows, by which the weights were chosen.
        test: Score on the test rows; NaN if they were not scored.
        step: The step whose weights were kept; 0 is before training.
        n_trained: Number of trained parameters.
        n_empty: Number of empty test answers, or of development answers if no test row was scored.
        n_answers: Number of answers; None for results of a search of training.
        begun_as: The trained task whose routing weights were the start, if one was chosen.
        rows: Digest of rows and metric, `mttl.tasks.folder.Gym.digest`; None for a search.
    """

    task: str
    sample: int
    seed: int
    metric: str
    dev: float
    test: float
    step: int
    n_trained: int
    n_empty: int
    n_answers: int | None = None
    begun_as: str | None = None
    rows: str | None = None

    @property
    def job(self) -> FewShotJob:
        """The job it belongs to."""
        return FewShotJob(self.task, self.sample, self.seed)

    def row(self) -> dict[str, Any]:
        """Return what `results.jsonl` holds; an undefined score is null."""
        values = asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in values.items()
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read back what `row` returned."""
        scores = {name: math.nan if row[name] is None else row[name] for name in ("dev", "test")}
        return cls(**{**row, **scores})
