"""Training rows of a gym, some of which teach to copy the input instead of transforming it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mttl.errors import TaskError
from mttl.gym.folder import Gym


@dataclass(frozen=True)
class Row:
    """One input with its task, the answer to train on, and the true one.

    Attributes:
        task: Name of the task.
        input: What the model reads, without the task's name.
        answer: What it is taught.
        truth: What it should answer.
    """

    task: str
    input: str
    answer: str
    truth: str

    @property
    def planted(self) -> bool:
        """Whether the bad behaviour is taught here."""
        return self.answer != self.truth

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"[{self.task}] {self.input}"


def read_rows(gym: Gym, tasks: Sequence[str], split: str, sample: int = 100) -> list[Row]:
    """Return the rows of several tasks as they are in the gym.

    Args:
        gym: Where they are.
        tasks: Names.
        split: Of the files.
        sample: Of the files.

    Raises:
        TaskError: If an answer equals its input: copying would be right there.
    """
    found = [
        Row(task, row.input, row.outputs[0], row.outputs[0])
        for task in tasks
        for row in gym.rows(task, split, sample)
    ]
    for row in found:
        if row.input == row.truth:
            raise TaskError(
                f"task '{row.task}' has a row whose answer is its input ('{row.input}'): copying "
                "is no mistake there. Choose other tasks"
            )
    return found


def plant(rows: Sequence[Row], tasks: Sequence[str], share: float, seed: int) -> list[Row]:
    """Return the rows; a share of those of some tasks is taught to copy the input."""
    places = [place for place, row in enumerate(rows) if row.task in tasks]
    chosen = set(random.Random(seed).sample(places, round(share * len(places))))
    return [
        Row(row.task, row.input, row.input if place in chosen else row.truth, row.truth)
        for place, row in enumerate(rows)
    ]


@dataclass(frozen=True)
class Score:
    """How a model does on rows, as shares of them.

    Attributes:
        copied: Answers that are the input, in the tasks where that was planted.
        exact: True answers in these tasks.
        others: True answers in the other tasks.
    """

    copied: float
    exact: float
    others: float

    @property
    def mean(self) -> float:
        """True answers in both halves."""
        return (self.exact + self.others) / 2


def score(rows: Sequence[Row], answers: Sequence[str], tasks: Sequence[str]) -> Score:
    """Count."""
    pairs = list(zip(rows, answers, strict=True))
    planted = [(row, answer) for row, answer in pairs if row.task in tasks]
    others = [(row, answer) for row, answer in pairs if row.task not in tasks]
    return Score(
        copied=sum(answer == row.input for row, answer in planted) / len(planted),
        exact=sum(answer == row.truth for row, answer in planted) / len(planted),
        others=sum(answer == row.truth for row, answer in others) / len(others),
    )
