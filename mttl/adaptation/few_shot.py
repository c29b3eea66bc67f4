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
        seed: Of noise and order.
        metric: Name of the metric.
        dev: Score on the development rows, by which the weights were chosen.
        test: Score on the test rows; undefined (NaN) where they were not scored.
        step: The step whose weights were kept; 0 is before training.
        n_trained: Parameters that were trained.
        n_empty: Test answers that are empty; development answers where the test rows were not
            scored.
        n_answers: How many answers that is out of; None in results of earlier versions.
        begun_as: The trained task as which the new one began, where one was chosen.
        rows: Of which rows and metric it is: `mttl.tasks.folder.Gym.digest`; None in results of
            earlier versions.
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
