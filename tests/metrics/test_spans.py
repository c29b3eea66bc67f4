"""Spans and tags, beside the package seqeval."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, f1_score
from seqeval.scheme import IOB2, IOBES

from mttl.metrics.crossfit import score_answers

IOB = ["O", *(f"{prefix}-{name}" for prefix in "BI" for name in "XY")]
ALL = [*IOB, *(f"{prefix}-{name}" for prefix in "ES" for name in "XY"), "B", "I"]


def rows(known):
    pair = st.tuples(st.sampled_from(known), st.sampled_from(known))
    return st.lists(st.lists(pair, min_size=1, max_size=12), min_size=1, max_size=5)


def scores(sentences, metric, **theirs):
    """Return our score and that of seqeval."""
    gold, predicted = ([[pair[side] for pair in own] for own in sentences] for side in (0, 1))
    ours = score_answers(metric, [*map(" ".join, predicted)], [[" ".join(own)] for own in gold])
    if metric == "tag-accuracy":
        return ours, accuracy_score(gold, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a bare tag
        return ours, f1_score(gold, predicted, zero_division=0, **theirs)


# They divide twice more: some roundings of 1e-16.
def same(pair):
    return pair[0] == pytest.approx(pair[1], rel=1e-14)


@given(rows(ALL))
def test_spans_and_accuracy_equal_seqeval(sentences):
    assert same(scores(sentences, "span-F1"))
    assert same(scores(sentences, "tag-accuracy"))


@given(rows(IOB), rows(ALL))
def test_strict_spans_equal_seqeval(iob, iobes):
    assert same(scores(iob, "span-F1-strict", mode="strict", scheme=IOB2))
    ended = [*iobes, [("S-X", "O")]]  # by which the true tags are IOBES
    assert same(scores(ended, "span-F1-strict", mode="strict", scheme=IOBES))


@pytest.mark.parametrize(
    ("label", "answer", "expected"),
    [
        ("B-X I-X O", "B-X I-X", (1.0, 1.0, 1.0)),
        ("B-X I-X O", "B-X", (0.0, 0.0, 2 / 3)),
        ("B-X I-X O", "I-X I-X O B-X B-X", (1.0, 0.0, 2 / 3)),
        ("B-X O", "a bad answer", (0.0, 0.0, 0.0)),
        ("O O", "O O", (0.0, 0.0, 1.0)),
        ("B-X", "", (0.0, 0.0, 0.0)),
    ],
)
def test_answers_of_any_length(label, answer, expected):
    names = ("span-F1", "span-F1-strict", "tag-accuracy")
    assert tuple(score_answers(name, [answer], [[label]]) for name in names) == expected
