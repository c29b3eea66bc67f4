r"""A choice among given answers, by how likely a model finds each.

An answer is scored by its log-probability after the prompt, the end token included: that of ending
where it ends. :math:`s_a = \sum_i \log p(a_i \mid a_{<i}, x)`; the probabilities of the choice are
:math:`p(a) = e^{s_a} / \sum_b e^{s_b}`. Longer answers have more factors below 1. Where that should
not count, :math:`s_a` is divided by the number of tokens: the choice is then by the mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mttl.data.encode import TextEncoder
from mttl.io.errors import TaskError


@dataclass(frozen=True)
class OptionChoice:
    """What was chosen for one text.

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
