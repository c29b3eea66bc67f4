"""Scores of tags that are joined by blanks: ``B-PER I-PER O``."""

import re
from collections.abc import Sequence

OUTSIDE = ("O", "")


def spans(tags: Sequence[str], form: str = "[BIES]+") -> set[tuple[str, int, int]]:
    """Return type, start and end of the spans in tags of IOB2 or IOBES.

    By default any tag of another type than the previous one starts a span, as in ``conlleval``
    and the default of seqeval. With a ``form``, only spans whose prefixes match this pattern count.
    Tags without a prefix ``B-``, ``I-``, ``E-`` or ``S-`` are outside.
    """
    parsed = [(tag[0], tag[2:]) if re.match("[BIES](-|$)", tag) else OUTSIDE for tag in tags]
    found, start, before = set(), 0, OUTSIDE
    for place, (prefix, name) in enumerate([*parsed, OUTSIDE]):
        if prefix in "IE" and before[0] in "BI" and name == before[1]:
            before = prefix, name
            continue
        if before != OUTSIDE and re.fullmatch(form, "".join(x for x, _ in parsed[start:place])):
            found.add((before[1], start, place))
        start, before = place, (prefix, name)
    return found


def span_f1(rows: Sequence[tuple[str, str]], *, strict: bool = False) -> float:
    r"""Return the F1 of spans over all sentences, :math:`2 |G \cap P| / (|G| + |P|)`.

    G are the true spans and P the predicted ones; a span is right if type, start and end are. It is
    the micro average of seqeval, 0 if there are no spans. Strict spans are ``B I*`` in IOB2,
    and ``B I* E`` or ``S`` in IOBES, which true tags with ``E-`` or ``S-`` are. The tags of an
    answer are cut to the sentence, and missing ones are ``O``.

    Args:
        rows: True tags and answer of every sentence.
        strict: Whether spans must be complete in the scheme, as in seqeval's ``mode="strict"``.

    References:
        Nakayama, *seqeval: A Python framework for sequence labeling evaluation*, 2018.
    """
    form = "[BIES]+"
    if strict:
        ended = any(re.search("(^| )[ES](-| |$)", label) for label, _ in rows)
        form = "BI*E|S" if ended else "BI*"
    both = total = 0
    for label, answer in rows:
        gold, predicted = (spans(tags, form) for tags in aligned(label, answer))
        both += len(gold & predicted)
        total += len(gold) + len(predicted)
    return 2 * both / max(total, 1)


def tag_accuracy(rows: Sequence[tuple[str, str]]) -> float:
    """Return the share of words with the right tag; rows are those of `span_f1`."""
    pairs = [pair for row in rows for pair in zip(*aligned(*row), strict=True)]
    return sum(own == other for own, other in pairs) / max(len(pairs), 1)


def aligned(label: str, answer: str) -> tuple[list[str], list[str]]:
    """Return the true tags, and an equal number of predicted ones."""
    gold = label.split()
    return gold, [*answer.split(), *["O"] * len(gold)][: len(gold)]
