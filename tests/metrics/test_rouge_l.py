"""CrossFit scores ROUGE-L with the package `rouge`; so it is the reference here."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rouge import Rouge

from mttl.metrics.rouge_l import common_words, rouge_l

words = st.lists(
    st.sampled_from(
        ["cat", "dog", "sat.", "the", "mat", "-", "?", ".", "..", "\u2026", "A.B", "cat"]
    ),
    max_size=12,
)
odd_texts = st.one_of(
    words.map(" ".join),
    st.text(max_size=30),
    st.text(alphabet=string.punctuation + " \t\n\u00a0\u200b\x1c", max_size=12),
    st.text(alphabet="ab. ", max_size=24),
)


def crossfits_score(prediction: str, reference: str) -> float:
    """The package with CrossFit's exception: nothing but punctuation scores 0."""
    if all(character in string.punctuation for character in prediction):
        return 0.0
    try:
        return Rouge().get_scores(prediction, reference, avg=True)["rouge-l"]["f"]
    except ValueError:  # an empty reference, which CrossFit stops at
        assert not reference.strip(".")
        return 0.0


@given(odd_texts, odd_texts)
@example("- ?", "x - ?")
@example("- ?", "- ?")
@example("?", "?")
@example(". .", "x")
@example("x", "...")
@example("x", "?")
@example("\u2026", "\u2026")
@example("a b a c", "a c b a. b a")
def test_rouge_l_is_crossfits_to_the_last_bit(prediction, reference):
    prediction = prediction.strip()  # as CrossFit does before it scores
    assert rouge_l(prediction, reference) == crossfits_score(prediction, reference)


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("- ?", "x - ?", 0.8),
        ("- -", "- -", 1.0),
        ("-", "-", 0.0),
        ("", "a cat", 0.0),
        ("a cat", ".", 0.0),
        ("the cat", "the dog", 0.5),
    ],
)
def test_scores_by_hand(prediction, reference, expected):
    assert rouge_l(prediction, reference) == pytest.approx(expected, abs=1e-7)


def test_of_equally_long_subsequences_the_packages_is_taken():
    assert common_words(["a", "b"], ["b", "a"]) == {"b"}
    assert common_words(["a", "b", "c"], ["a", "c"]) == {"a", "c"}
    assert common_words([], ["a"]) == set()
