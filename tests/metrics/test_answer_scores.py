import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge import Rouge

from mttl.metrics.answer_scores import (
    best,
    exact_match,
    normalise,
    rouge_l,
    same_ignoring_case,
    word_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat!", "cat"),
        ("a man, an apple; the end.", "man apple end"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("...", ""),
        ("", ""),
        ("ÉTÉ", "été"),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


def test_comparisons_by_hand():
    assert same_ignoring_case("Yes", "yes") == 1
    assert same_ignoring_case("yes.", "yes") == 0
    assert exact_match("The yes.", "yes") == 1
    assert exact_match("no", "yes") == 0
    # two of three words shared: precision 2/3, recall 1
    assert word_f1("red green blue", "green red") == pytest.approx(0.8)
    # repetition counts: one "x" shared of two and one
    assert word_f1("x x", "x") == pytest.approx(2 / 3)
    assert word_f1("", "x") == 0
    assert word_f1("the", "a") == 0


words = st.lists(st.sampled_from(["cat", "dog", "sat.", "the", "mat"]), min_size=1, max_size=8)


@given(words, words)
def test_rouge_l_is_that_of_the_package(predicted, expected):
    prediction, reference = " ".join(predicted), " ".join(expected)
    found = Rouge().get_scores(prediction, reference)[0]["rouge-l"]["f"]
    assert rouge_l(prediction, reference) == pytest.approx(found)


def test_rouge_l_of_punctuation_is_zero():
    assert rouge_l("...", "a cat") == 0
    assert rouge_l("", "a cat") == 0
    assert rouge_l("a cat", ".") == 0


def test_best_strips_the_answer_and_takes_the_best_reference():
    assert best(same_ignoring_case, " B \n", ["a", "b"]) == 1
