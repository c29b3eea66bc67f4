"""Options of a task, from the table of tasks or from its training rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from mttl.data.encode import TextEncoder
from mttl.io.errors import TaskError, some
from mttl.tasks.folder import Gym
from mttl.tasks.rows import Row, RowFile


@dataclass(frozen=True)
class OptionChoice:
    r"""Choice among given answers, with the probability of each.

    An answer's score is its log-probability after the prompt, including the end token, :math:`s_a =
    \sum_i \log p(a_i \mid a_{<i}, x)`, or the mean over its tokens, which does not penalise long
    answers. Probabilities are :math:`p(a) = e^{s_a} / \sum_b e^{s_b}`, in the order of the answers;
    ``answer`` is the most probable one, the first of equal ones.
    """

    answer: str
    probabilities: Mapping[str, float]

    @classmethod
    def among(cls, scores: Mapping[str, float]) -> "OptionChoice":
        """Return the choice for given scores."""
        values = torch.tensor(list(scores.values()), dtype=torch.float64).softmax(0).tolist()
        probabilities = dict(zip(scores, values, strict=True))
        return cls(max(probabilities, key=probabilities.__getitem__), probabilities)


def check_choices(given: Sequence[str], place: str) -> list[str]:
    """Return the choices, stripped; ``place`` describes their text in messages.

    Raises a `TaskError` if there are less than two, or one is empty or repeated.
    """
    answers = [answer.strip() for answer in given]
    if len(set(answers)) < max(len(answers), 2) or not all(answers):
        raise TaskError(
            f"{place}: the choices are {list(given)}; there must be at least two, without empty "
            "or repeated ones"
        )
    return answers


def choice_ids(
    encoder: TextEncoder, answers: Sequence[str], whose: str, advice: str
) -> list[list[int]]:
    """Return the ids of choices including the end token, truncated as in training.

    Raises a `TaskError` if two have the same ids because both are truncated.
    """
    ids = encoder.answers(answers)
    if len(set(map(tuple, ids))) < len(ids):
        raise TaskError(
            f"{whose} are identical after truncation to the maximum answer length; {advice}"
        )
    return ids


# Distinct answers of training rows are options if there are few, with several rows each.
MOST_OPTIONS, ROWS_EACH = 20, 4


def task_options(gym: Gym, task: str, samples: Sequence[int]) -> list[str]:
    """Return the options of a task; empty if it has none.

    They are the column ``options`` of TASKS.csv, separated by ``|``; otherwise the sorted distinct
    first answers of the samples' training rows, if there are at most 20 with on average four rows.
    A dialogue, whose answers are sentences, has only named options. Raises a `TaskError` if the
    column has a single, an empty or a repeated option, or a file is malformed.
    """
    named = gym.options(task)
    if named:
        return check_choices(named, f"{gym.described_in}, options of '{task}'")
    if (template := gym.template(task)) and template.dialogue:
        return []
    found: set[str] = set()
    n_rows = 0
    for sample in samples:
        if not gym.has_sample(task, sample):
            continue
        for row in RowFile.scan(gym.file(task, "train", sample)).rows():
            found.add(row.outputs[0].strip())
            n_rows += 1
            if len(found) > MOST_OPTIONS:
                return []
    return sorted(found) if len(found) > 1 and n_rows >= ROWS_EACH * len(found) else []


def missing_options(options: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a warning if rows have options, but none of their answers is one; else nothing."""
    lost = [row.outputs[0] for row in rows if options and not {*row.outputs} & {*options}]
    if not lost:
        return ""
    return f"{len(lost)} of {len(rows)} answers are not among the options, such as '{lost[0][:60]}'"


def wanted_options(
    gym: Gym, samples: Iterable[tuple[str, Sequence[int]]], mode: str
) -> dict[str, list[str]]:
    """Return the options of the ranked tasks; ``samples`` are pairs of task and samples.

    The list of a task whose rows have their own options is empty.

    Mode ``"auto"`` ranks the tasks with declared options, ``"generate"`` none, ``"rank"`` all,
    ``"both"`` the tasks with options. Tasks with heads are never ranked. Raises a `TaskError` that
    lists the tasks without options if all are to be ranked.
    """
    if mode == "generate":
        return {}
    samples = [(task, own) for task, own in samples if gym.head(task) is None]
    by_row = {task: [] for task, _ in samples if gym.has_choices(task)}
    samples = [(task, own) for task, own in samples if task not in by_row]
    if mode == "auto":
        samples = [(task, own) for task, own in samples if gym.options(task)]
    found = [(task, task_options(gym, task, own)) for task, own in samples]
    lacking = list(dict.fromkeys(task for task, options in found if not options))
    if lacking and mode == "rank":
        raise TaskError(
            f"these tasks have no options to rank: {some(lacking)}. Add them to "
            f"{gym.described_in} as 'options', or use at most "
            f"{MOST_OPTIONS} distinct answers with {ROWS_EACH} training rows each, or set "
            "generation.mode: both to rank only tasks with options"
        )
    return by_row | {task: options for task, options in found if options}
