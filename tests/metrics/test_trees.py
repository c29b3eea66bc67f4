"""Attachment scores, beside numbers of the CoNLL 2018 evaluation script."""

import pytest

from mttl.metrics.crossfit import score_answers
from mttl.metrics.trees import arcs_of, find_cycle, tree_text

GOLD = ["2:nsubj:pass 0:root 2:obl:tmod 3:case", "0:root 1:obj"]


@pytest.mark.parametrize(
    ("answers", "uas", "las"),
    [
        (GOLD, 6, 6),
        # Printed by the script (its copy in udtools 0.2.9) for files with these trees.
        (["2:nsubj 0:root 2:obl:agent 2:case", "0:root 1:nsubj"], 5, 4),
        (["2:obj 3:root 0:root 3:case", "2:obj 0:root"], 2, 1),
        # Files cannot have these; the words are wrong, or there are more than words.
        (["2:nsubj 0:root", ""], 2, 2),
        (["2 0:root 2:obl 3:case", "0:root 1:obj 1:obj"], 6, 5),
    ],
)
def test_attachment_scores(answers, uas, las):
    references = [[label] for label in GOLD]
    assert score_answers("UAS", answers, references) == pytest.approx(uas / 6)
    assert score_answers("LAS", answers, references) == pytest.approx(las / 6)


def test_trees_as_texts_and_cycles():
    text = "2:nsubj:pass 0:root"
    assert arcs_of(text) == [("2", "nsubj:pass"), ("0", "root")]
    assert tree_text([2, 0], ["nsubj:pass", "root"]) == text
    assert find_cycle([2, 0, 2]) == find_cycle([]) == []
    assert sorted(find_cycle([0, 1, 4, 5, 3])) == [3, 4, 5]
    assert find_cycle([1]) == [1]
