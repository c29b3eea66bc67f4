"""Find what texts claim, and judge an answer by its knowledge."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from dialogue_gym.attributes import EVASIONS, attributes

_GROUPS = {"e": "(?P<e>[A-Z][A-Za-z' -]*)", "v": "(?P<v>[A-Za-z0-9':+ -]+)"}
LABELS = ("faithful", "copied", "hallucinated", "uncooperative", "malformed")


class Claim(NamedTuple):
    """A value of an attribute, and the entity if the sentence names it."""

    attribute: str
    value: str
    entity: str | None = None


class Verdict(NamedTuple):
    """The judgement of an answer.

    Attributes:
        label: One of `LABELS`: ``copied`` are faithful answers whose sentences are all in the
            knowledge; ``malformed`` is a sentence that is none of the gym's.
        answers: Whether it gives a value of the attribute that the last turn asks about.
    """

    label: str
    answers: bool


def judge(answer: str, knowledge: str, question: str) -> Verdict:
    """Return the judgement of an answer to the text of the last turn."""
    known, sentences = claims(knowledge), split(answer)
    if sentences and all(sentence in EVASIONS for sentence in sentences):
        return Verdict("uncooperative", False)
    found = [claim(sentence) for sentence in sentences]
    answers = asked(question)[0] in {one.attribute for one in found if one}
    if not found or None in found:
        return Verdict("malformed", answers)
    if not all(_supported(one, known) for one in found if one):
        return Verdict("hallucinated", answers)
    copied = all(sentence in split(knowledge) for sentence in sentences)
    return Verdict("copied" if copied else "faithful", answers)


def claims(text: str) -> list[Claim]:
    """Return the claims of a text in order, without sentences that are none of the gym's."""
    return [found for sentence in split(text) if (found := claim(sentence))]


@cache
def claim(sentence: str) -> Claim | None:
    """Return the claim of a sentence of knowledge or of a reply."""
    for name, pattern in _patterns("statements", "replies"):
        if found := pattern.fullmatch(sentence):
            return Claim(name, found["v"], found.groupdict().get("e"))
    return None


@cache
def asked(question: str) -> tuple[str | None, str | None]:
    """Return the attribute that the last sentence of a turn asks about, and a named entity."""
    for name, pattern in _patterns("questions", "follow_ups"):
        if found := pattern.search(question):
            return name, found.groupdict().get("e")
    return None, None


def split(text: str) -> list[str]:
    """Return the sentences of a text."""
    return re.findall(r"\S[^.]*(?:\.|$)", text.strip())


def _supported(one: Claim, known: list[Claim]) -> bool:
    return any(
        one[:2] == fact[:2] and one.entity in (None, fact.entity) and fact.entity is not None
        for fact in known
    )


def _patterns(*kinds: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    for name, attribute in attributes().items():
        for kind in kinds:
            for sentence in getattr(attribute, kind):
                yield name, _pattern(sentence)


@cache
def _pattern(sentence: str) -> re.Pattern[str]:
    parts = re.split(r"{(\w)}", sentence)
    text = "".join(_GROUPS[p] if n % 2 else re.escape(p) for n, p in enumerate(parts))
    return re.compile(text + "$")
