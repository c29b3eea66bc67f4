"""Comparison of an answer with the accepted ones.

References:
    Ye, Lin and Ren, *CrossFit: A Few-shot Learning Challenge for Cross-task Generalization in
    NLP*, EMNLP 2021, arXiv:2104.08835 (its published scoring). Normalisation and F1: Rajpurkar,
    Zhang, Lopyrev and Liang, *SQuAD*, EMNLP 2016, arXiv:1606.05250. ROUGE-L: Lin, *ROUGE: A
    Package for Automatic Evaluation of Summaries*, ACL workshop 2004, with the conventions of the
    package that CrossFit uses: ``rouge`` 1.0.1, ``get_scores(prediction,
    reference)[0]["rouge-l"]["f"]``.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.reading import parse_json

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = frozenset(string.punctuation)
# As in the package: keeps the F-score of two zeros finite, and a perfect one just below 1.
SMALLEST_SUM = 1e-8


def normalise(text: str) -> str:
    """Return the text in lower case without punctuation, articles and extra blanks."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", bare).split())


def normalise_some(text: str) -> str:
    """Return the normalised text; texts of only articles or punctuation keep them."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return normalise(text) or " ".join((bare.strip() or text.lower()).split())


def exact_match(
    prediction: str, reference: str, normalise: Callable[[str], str] = normalise
) -> float:
    """Return 1 if both are equal after normalisation, else 0."""
    return float(normalise(prediction) == normalise(reference))


def same_json(prediction: str, reference: str) -> float:
    """Return 1 if both are equal as JSON data, or as texts, else 0.

    Order of keys, white space and the form of numbers do not count; true is not 1.
    """
    if prediction == reference:
        return 1.0
    try:
        found = [parse_json(text, "", TaskError) for text in (prediction, reference)]
    except TaskError:
        return 0.0
    return float(_same_data(*found))


def _same_data(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_data(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_data, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def matches(prediction: str, reference: str) -> float:
    """Return 1 if the whole answer matches the reference, a regular expression, else 0.

    Raises a `TaskError` if the reference is not a regular expression.
    """
    try:
        return float(re.fullmatch(reference, prediction, re.DOTALL) is not None)
    except re.error as error:
        raise TaskError(
            f"metric regex: the reference '{reference[:80]}' is not a regular expression ({error})"
        ) from error


def word_f1(prediction: str, reference: str, normalise: Callable[[str], str] = normalise) -> float:
    """Return the F1 of the normalised words, with repetitions.

    It is 0 if no word is shared, also if both texts are empty.
    """
    predicted, expected = normalise(prediction).split(), normalise(reference).split()
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction: str, reference: str) -> float:
    """Return the F-score of ROUGE-L over distinct words.

    Texts are split into sentences at full stops, and into words at blanks. Each sentence of the
    reference is compared with each of the prediction. The score is computed from the number of
    distinct words in the longest common subsequences, relative to the distinct words of the
    prediction (precision) and of the reference (recall).

    A prediction of only punctuation scores 0, as in CrossFit; so does any prediction for a
    reference that is empty or has only full stops, for which CrossFit fails.
    """
    expected = _sentences(reference)
    if PUNCTUATION.issuperset(prediction) or not expected:
        return 0.0
    predicted = _sentences(prediction)
    common = set[str]().union(*(common_words(one, two) for one in expected for two in predicted))
    precision = len(common) / len({word for sentence in predicted for word in sentence})
    recall = len(common) / len({word for sentence in expected for word in sentence})
    return 2.0 * ((precision * recall) / (precision + recall + SMALLEST_SUM))


def rouge_l_or_same(prediction: str, reference: str) -> float:
    """Return `rouge_l`, or 1 for equal texts such as ``!=`` for which it is 0."""
    return rouge_l(prediction, reference) or float(prediction == reference)


def rouge_f(prediction: str, reference: str) -> float:
    """Return ROUGE-L: the F-score of the longest common subsequence of words.

    Words are letters and digits of any script in lower case, and repeated words count, as in the
    package ``rouge_score`` for English. Texts without words are compared as written.
    """
    predicted, expected = plain_words(prediction), plain_words(reference)
    if not predicted or not expected:
        return float(prediction == reference)
    return 2 * common_length(expected, predicted) / (len(predicted) + len(expected))


def plain_words(text: str) -> list[str]:
    """Return the words of a text: runs of letters and digits of any script, in lower case."""
    return re.findall(r"[^\W_]+", text.lower())


def common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    return _subsequences(first, second)[-1][-1]


def common_words(first: Sequence[str], second: Sequence[str]) -> set[str]:
    """Return the words of the longest common subsequence of two sentences.

    Among several, that of the package: from the end, words are dropped from ``second`` unless this
    would shorten the subsequence and dropping them from ``first`` would not.
    """
    lengths = _subsequences(first, second)
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


def _subsequences(first: Sequence[str], second: Sequence[str]) -> list[list[int]]:
    """Return the length of the longest common subsequence of every two beginnings."""
    lengths = [[0] * (len(second) + 1)]
    for word in first:
        above, row = lengths[-1], [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
        lengths.append(row)
    return lengths


def _sentences(text: str) -> list[list[str]]:
    """Return the words of every sentence; a blank sentence has one empty word."""
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]
