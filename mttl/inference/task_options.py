"""The answers that a task chooses from: a gym's table names them, or training rows show them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from mttl.data.encode import TextEncoder
from mttl.io.errors import TaskError, some
from mttl.tasks.folder import Gym
from mttl.tasks.rows import RowFile


@dataclass(frozen=True)
class OptionChoice:
    r"""What was chosen for one text among given answers, by how likely a model finds each.

    An answer is scored by its log-probability after the prompt, the end token included:
    :math:`s_a = \sum_i \log p(a_i \mid a_{<i}, x)`, or by the mean over its tokens where longer
    answers shall lose nothing. The probabilities are :math:`p(a) = e^{s_a} / \sum_b e^{s_b}`.

    Attributes:
        answer: The most probable of the given answers; of equal ones the first.
        probabilities: Probability of every given answer, in their order; their sum is 1.
    """

    answer: str
    probabilities: Mapping[str, float]

    @classmethod
    def among(cls, scores: Mapping[str, float]) -> "OptionChoice":
        """Return the choice that scores lead to."""
        values = torch.tensor(list(scores.values()), dtype=torch.float64).softmax(0).tolist()
        probabilities = dict(zip(scores, values, strict=True))
        return cls(max(probabilities, key=probabilities.__getitem__), probabilities)


def check_choices(given: Sequence[str], place: str) -> list[str]:
    """Return answers to choose from, stripped; ``place`` names their text in the message.

    Raises:
        TaskError: If there are less than two, or one is empty or stands twice.
    """
    answers = [answer.strip() for answer in given]
    if len(set(answers)) < max(len(answers), 2) or not all(answers):
        raise TaskError(
            f"{place}: the choices are {list(given)}; there must be at least two, none empty and "
            "none twice"
        )
    return answers


def choice_ids(
    encoder: TextEncoder, answers: Sequence[str], whose: str, advice: str
) -> list[list[int]]:
    """Return the ids of answers to choose from, the end token included, cut as in training.

    Raises:
        TaskError: If two of them have the same ids, since both are cut.
    """
    ids = encoder.answers(answers)
    if len(set(map(tuple, ids))) < len(ids):
        raise TaskError(
            f"{whose} are identical up to the length at which answers are cut; {advice}"
        )
    return ids


# Distinct answers of training rows are options where they are few, and come back.
MOST_OPTIONS, ROWS_EACH = 20, 4


def task_options(gym: Gym, task: str, samples: Sequence[int]) -> list[str]:
    """Return the answers that a task chooses from, or none.

    They are those of the column ``options`` of TASKS.csv, joined by bars; else the distinct first
    answers of the training rows of samples, sorted, if there are at most 20, each in four rows on
    average.

    Raises:
        TaskError: If the column names one option, an empty one, or one twice, or a file is
            malformed.
    """
    named = gym.options(task)
    if named:
        place = f"'{gym.directory / 'TASKS.csv'}', options of '{task}'"
        return check_choices(named, place)
    found: set[str] = set()
    n_rows = 0
    for sample in samples:
        if sample not in gym.samples(task):
            continue
        for row in RowFile.scan(gym.file(task, "train", sample)).rows():
            found.add(row.outputs[0].strip())
            n_rows += 1
            if len(found) > MOST_OPTIONS:
                return []
    return sorted(found) if len(found) > 1 and n_rows >= ROWS_EACH * len(found) else []


def wanted_options(
    gym: Gym, samples: Iterable[tuple[str, Sequence[int]]], mode: str
) -> dict[str, list[str]]:
    """Return the options of the tasks that are ranked; ``samples`` are those of each task.

    The mode ``"generate"`` ranks none, ``"rank"`` all, ``"both"`` those that have options.

    Raises:
        TaskError: If all are ranked, and some have no options in samples; the message lists them.
    """
    if mode == "generate":
        return {}
    found = [(task, task_options(gym, task, own)) for task, own in samples]
    lacking = list(dict.fromkeys(task for task, options in found if not options))
    if lacking and mode == "rank":
        raise TaskError(
            f"these tasks have no answers to rank: {some(lacking)}. Name them in "
            f"'{gym.directory / 'TASKS.csv'}', in the column 'options', joined by bars (yes|no), "
            f"or let at most {MOST_OPTIONS} distinct answers stand in {ROWS_EACH} training rows "
            "each; generation.mode: both ranks only tasks that have options"
        )
    return {task: options for task, options in found if options}
