"""Dependency trees as texts, and their attachment scores.

A tree is ``head:relation`` of every word, joined by blanks: ``2:nsubj 0:root 2:obj``. Words are
counted from 1, and 0 is the root.
"""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter


def tree_text(heads: Sequence[int], relations: Sequence[str]) -> str:
    """Return a tree as a text."""
    return " ".join(f"{head}:{name}" for head, name in zip(heads, relations, strict=True))


def arcs_of(text: str) -> list[tuple[str, str]]:
    """Return head and relation of every word of a text; relations may contain colons."""
    return [(head, name) for head, _, name in (word.partition(":") for word in text.split())]


def attachment_score(rows: Sequence[tuple[str, str]], *, labelled: bool) -> float:
    """Return the share of words with the right head, and if labelled the right relation.

    This is UAS, or LAS, of the evaluation script of the CoNLL 2018 shared task with gold words:
    ``right words / gold words``. Subtypes of relations (``nsubj:pass``) are ignored. Words that
    an answer lacks are wrong, and further words of an answer are ignored.

    Args:
        rows: True tree and answer of every sentence.
        labelled: Whether relations count (LAS).

    References:
        Zeman et al., *CoNLL 2018 Shared Task: Multilingual Parsing from Raw Text to Universal
        Dependencies*, and its script ``conll18_ud_eval.py``.
    """
    right = total = 0
    for label, answer in rows:
        gold, predicted = (_counted(text, labelled) for text in (label, answer))
        right += sum(own == other for own, other in zip(gold, predicted, strict=False))
        total += len(gold)
    return right / max(total, 1)


def find_cycle(heads: Sequence[int]) -> list[int]:
    """Return the words of a cycle of heads, or an empty list if every word leads to the root."""
    try:
        TopologicalSorter({word: [head] for word, head in enumerate(heads, 1)}).prepare()
    except CycleError as error:
        return error.args[1][1:]
    return []


def _counted(text: str, labelled: bool) -> list[tuple[str, str]]:
    return [(head, name.split(":")[0] if labelled else "") for head, name in arcs_of(text)]
