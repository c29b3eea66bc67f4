"""Records that depend on other records: gathered in one, or ordered by numbers drawn row after row.

The words and seeds are those of CrossFit (Ye, Lin and Ren, EMNLP 2021, arXiv:2104.08835).
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mttl.tasks.filters import FieldError, shown
from mttl.tasks.template_field import Record

if TYPE_CHECKING:
    from numpy.random import RandomState

Rows = Iterator[tuple[int, Record]]
Prepare = Callable[[Rows], Rows]

_SEED = 42


def ordered_pair(better: str, worse: str) -> Prepare:
    """Put two sentences in an order drawn by seed; `good` is the place of the better one."""

    def prepare(rows: Rows) -> Rows:
        random = _draws()
        for number, record in rows:
            pair = record[better], record[worse]
            good = int(random.random_sample() <= 0.5)
            yield number, {"first": pair[good], "second": pair[1 - good], "good": good}

    return prepare


def shuffled_answers(rows: Rows) -> Rows:
    """Put the four answers of SciQ in an order drawn by seed."""
    random = _draws()
    names = ("distractor1", "distractor2", "distractor3", "correct_answer")
    for number, record in rows:
        answers = [record[name] for name in names]
        random.shuffle(answers)
        yield number, {**record, "answers": answers}


def concept_sets(rows: Rows) -> Rows:
    """Gather the sentences written about one set of concepts."""
    sets: dict[Any, tuple[int, dict[str, Any]]] = {}
    for number, record in rows:
        new = (number, {"concepts": record["concepts"], "targets": []})
        sets.setdefault(record["concept_set_idx"], new)[1]["targets"].append(record["target"])
    yield from sets.values()


def conversations(rows: Rows) -> Rows:
    """Gather the utterances about one prompt; ``_comma_`` is a comma, ``hit:`` marks a slip."""
    talks: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
    for number, record in rows:
        if "hit:" in record["utterance"]:
            continue
        prompt, context = record["prompt"].replace("_comma_", ","), record["context"]
        new = (number, {"prompt": prompt, "context": context, "utterances": []})
        talk = talks.setdefault((prompt, context), new)[1]
        talk["utterances"].append(record["utterance"].replace("_comma_", ","))
    yield from talks.values()


def questions_with_answers(rows: Rows) -> Rows:
    """Gather the candidate answers of one question of MultiRC, and the right ones of them."""
    questions: dict[Any, tuple[int, dict[str, Any]]] = {}
    for number, record in rows:
        new = (number, {**record, "answers": [], "right": []})
        question = questions.setdefault(record["idx"]["question"], new)[1]
        question["answers"].append(record["answer"])
        if record["label"] not in (0, 1):
            raise FieldError(f"the field 'label' is {shown(record['label'])}; it must be 0 or 1")
        if record["label"]:
            question["right"].append(record["answer"])
    for number, question in questions.values():
        yield number, {**question, "right": question["right"] or ["NO ANSWER!"]}


def _draws() -> "RandomState":
    from numpy.random import RandomState  # names and texts of tasks are read without it

    return RandomState(_SEED)
