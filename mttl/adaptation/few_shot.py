"""An adaptation to few examples as a job, and what it scored."""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.dataclasses import dataclass

from mttl.io.record import STRICT


def _nan_of_null(value: Any) -> Any:
    return math.nan if value is None else value


def _null_of_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


# A score, which is null in a file where the metric is undefined, or nothing was scored.
Score = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_nan_of_null),
    PlainSerializer(_null_of_nan),
]


@dataclass(frozen=True)
class FewShotJob:
    """One adaptation: a task, one of its few-shot samples, and a seed."""

    task: str
    sample: int
    seed: int

    def __str__(self) -> str:
        """Name the job in a message."""
        return f"{self.task}, sample {self.sample}, seed {self.seed}"


@dataclass(frozen=True, config=STRICT)
class FewShotResult:
    """What one job scored.

    Attributes:
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
    dev: Score
    test: Score
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
