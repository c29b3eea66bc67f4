"""ROUGE-L of one answer, with the conventions of the package ``rouge`` that CrossFit scores with.

References:
    Lin, *ROUGE: A Package for Automatic Evaluation of Summaries*, ACL workshop 2004. The package:
    ``rouge`` 1.0.1, ``get_scores(prediction, reference)[0]["rouge-l"]["f"]``.
"""

import string
from collections.abc import Sequence

PUNCTUATION = frozenset(string.punctuation)
# As in the package: keeps the F-score of two zeros finite, and a perfect one just below 1.
SMALLEST_SUM = 1e-8


def rouge_l(prediction: str, reference: str) -> float:
    """Return the F-score of ROUGE-L over different words.

    Texts are split into sentences at every full stop, and sentences into words at blanks. Each
    sentence of the reference is compared with each of the prediction; what counts is how many
    different words their longest common subsequences hold in all, of the different words of the
    prediction (precision) and of the reference (recall).

    A prediction of punctuation alone, without even a blank, scores 0, as CrossFit says; so does
    any prediction where the reference is empty or holds full stops alone, which CrossFit cannot
    score.
    """
    expected = _sentences(reference)
    if PUNCTUATION.issuperset(prediction) or not expected:
        return 0.0
    predicted = _sentences(prediction)
    common = {
        word for theirs in expected for ours in predicted for word in common_words(theirs, ours)
    }
    precision = len(common) / len({word for sentence in predicted for word in sentence})
    recall = len(common) / len({word for sentence in expected for word in sentence})
    return 2.0 * ((precision * recall) / (precision + recall + SMALLEST_SUM))


def rouge_l_or_same(prediction: str, reference: str) -> float:
    """Return `rouge_l`, or 1 where it is 0 of two equal texts, such as ``!=``."""
    return rouge_l(prediction, reference) or float(prediction == reference)


def common_words(first: Sequence[str], second: Sequence[str]) -> set[str]:
    """Return the words of the longest common subsequence of two sentences.

    Of several, the package's choice: from the end, words are dropped from ``second`` unless that
    would cost length and dropping them from ``first`` would not.
    """
    lengths = [[0] * (len(second) + 1)]
    for word in first:
        above, row = lengths[-1], [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
        lengths.append(row)
    words, i, j = set(), len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            words.add(first[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def _sentences(text: str) -> list[list[str]]:
    """Return the words of every sentence; one of blanks alone holds the empty word."""
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]
