"""Metrics of answers and knowledge, beside published algorithms."""

import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mttl.io.errors import TaskError
from mttl.metrics.crossfit import score_answers
from mttl.metrics.grounding import fragments

KNOWLEDGE = "The Eiffel Tower, built in 1889, is 330 metres tall."


def score(metric: str, answer: str, knowledge: str) -> float:
    return score_answers(metric, [answer], [["-"]], [{"columns": {"knowledge": knowledge}}])


@pytest.mark.parametrize(
    ("metric", "answer", "knowledge", "expected"),
    [
        ("knowledge_f1", "Eiffel's tower is tall!", KNOWLEDGE, 2 * 4 / (5 + 9)),
        ("knowledge_f1", "the a", "an", 0),
        # [the eiffel tower] was built [is tall]: "is" and "tall" are apart in the knowledge.
        ("coverage", "The Eiffel tower was tall", KNOWLEDGE, 4 / 5),
        ("density", "The Eiffel tower was tall", KNOWLEDGE, (9 + 1) / 5 / 100),
        ("density", "x " * 150, "x " * 150, 1),
        ("coverage", "?", KNOWLEDGE, 0),
        ("lcs", "The tall tower is built", KNOWLEDGE, 3 / 5),  # the tower is
        ("lcs", "", KNOWLEDGE, 0),
    ],
)
def test_scores_by_hand(metric, answer, knowledge, expected):
    assert score(metric, answer, knowledge) == pytest.approx(expected, rel=1e-14)


WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=12)


def published_fragments(summary: list[str], article: list[str]) -> list[list[str]]:
    """The algorithm of Grusky et al. (2018), line by line, with its indices from 1."""
    s, a = [None, *summary], [None, *article]
    found, i, j = [], 1, 1
    while i <= len(summary):
        f = []
        while j <= len(article):
            if s[i] == a[j]:
                i_end, j_end = i, j
                while i_end <= len(summary) and j_end <= len(article) and s[i_end] == a[j_end]:
                    i_end, j_end = i_end + 1, j_end + 1
                if len(f) < i_end - i:
                    f = s[i:i_end]
                j = j_end
            else:
                j = j + 1
        i, j = i + max(len(f), 1), 1
        found.append(f)
    return found


@given(WORDS, WORDS)
@example(["a", "a", "b"], ["a", "a", "a", "b"])  # the longest match is skipped
def test_fragments_are_those_of_the_published_algorithm(answer, source):
    assert fragments(answer, source) == [len(f) for f in published_fragments(answer, source)]


ODD = st.text(alphabet="aT the.'-_\u00e9B!", max_size=25)


@given(ODD, ODD)
def test_knowledge_f1_is_that_of_parlai(answer, knowledge):
    mark = "[" + re.escape("!\"#$%&()*+,-./:;<=>?@[]\\^`{|}~_'") + "]"
    words = [
        re.sub(r"\b(a|an|the)\b", " ", re.sub(mark, " ", text.lower())).split()
        for text in (answer, knowledge)
    ]
    shared = (Counter(words[0]) & Counter(words[1])).total()
    expected = 2 * shared / (len(words[0]) + len(words[1])) if shared else 0
    assert score("knowledge_f1", answer, knowledge) == pytest.approx(expected, rel=1e-14)


def test_a_row_without_knowledge_is_reported():
    message = r"a text in the column 'knowledge' of every row; .* 'why\?' has the columns: id\."
    with pytest.raises(TaskError, match=message):
        score_answers("lcs", ["x"], [["x"]], [{"input": "why?", "columns": {"id": 1}}])
