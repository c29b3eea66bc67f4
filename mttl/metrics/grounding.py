"""Metrics that compare answers with the knowledge in the column ``knowledge`` of their rows."""

import string
from collections.abc import Mapping, Sequence
from typing import Any

from mttl.io.errors import TaskError
from mttl.metrics.answer_scores import common_length, normalise, plain_words, word_f1
from mttl.metrics.crossfit import MeanComparison

KNOWLEDGE = "knowledge"
_PUNCTUATION_AS_BLANKS = str.maketrans(dict.fromkeys(string.punctuation, " "))


def knowledge_of(row: Mapping[str, Any]) -> str:
    """Return the column ``knowledge`` of a row, of which several texts are joined.

    Raises a `TaskError` if there is no such text.
    """
    columns = row.get("columns", {})
    found = columns.get(KNOWLEDGE)
    if isinstance(found, list):
        found = " ".join(map(str, found))
    if not isinstance(found, str):
        raise TaskError(
            f"this metric needs a text in the column '{KNOWLEDGE}' of every row; the row with the "
            f"input '{row.get('input', '')[:60]}' has the columns: {', '.join(columns) or 'none'}. "
            f"List '{KNOWLEDGE}' in the key 'columns' of the task file, or choose another metric"
        )
    return found


class KnowledgeMetric(MeanComparison):
    """Mean over rows of a comparison of the answer with the row's knowledge."""

    reads_references = False

    def update(
        self,
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add predictions with their rows."""
        super().update(predictions, self.texts(references, rows))

    def texts(
        self, references: Sequence[Sequence[str]], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Sequence[str]]:
        """Return the texts that each answer is compared with: the knowledge."""
        return [[knowledge_of(row)] for row in rows]


class KnowledgeF1(KnowledgeMetric):
    """F1 of the normalised words of answer and knowledge, with repetitions.

    Words are in lower case; punctuation separates them, and articles are left out, as in ParlAI.

    References:
        Shuster, Poff, Chen, Kiela and Weston, *Retrieval Augmentation Reduces Hallucination in
        Conversation*, EMNLP Findings 2021, arXiv:2104.07567.
    """

    def compare(self, answer: str, reference: str) -> float:
        return word_f1(answer, reference, lambda x: normalise(x.translate(_PUNCTUATION_AS_BLANKS)))


class Coverage(KnowledgeMetric):
    r"""Share of the answer's words in extractive fragments, :math:`\sum_f |f| / |A|`.

    References:
        Grusky, Naaman and Artzi, *Newsroom: A Dataset of 1.3 Million Summaries with Diverse
        Extractive Strategies*, NAACL 2018, arXiv:1804.11283.
    """

    def compare(self, answer: str, reference: str) -> float:
        words = plain_words(answer)
        return sum(fragments(words, plain_words(reference))) / max(len(words), 1)


class Density(KnowledgeMetric):
    r"""A hundredth of the density of extractive fragments, :math:`\sum_f |f|^2 / |A|`.

    Tables show scores in percent, and so the density as published, up to 100 for a row.

    References:
        Grusky, Naaman and Artzi, *Newsroom: A Dataset of 1.3 Million Summaries with Diverse
        Extractive Strategies*, NAACL 2018, arXiv:1804.11283.
    """

    def compare(self, answer: str, reference: str) -> float:
        words = plain_words(answer)
        squares = sum(length**2 for length in fragments(words, plain_words(reference)))
        return min(squares / max(len(words), 1) / 100, 1.0)


class CommonSubsequence(KnowledgeMetric):
    """Longest common subsequence of the words of answer and knowledge, over the answer's length.

    References:
        Lin, *ROUGE: A Package for Automatic Evaluation of Summaries*, ACL workshop 2004 (the
        precision of ROUGE-L).
    """

    def compare(self, answer: str, reference: str) -> float:
        words = plain_words(answer)
        return common_length(words, plain_words(reference)) / max(len(words), 1)


def fragments(answer: Sequence[str], source: Sequence[str]) -> list[int]:
    """Return the lengths of the extractive fragments of an answer.

    Each is the longest match with the source from a word of the answer on; the next one starts
    behind it. As in the paper's algorithm, the search in the source goes on behind each match.
    """
    lengths, start = [], 0
    while start < len(answer):
        longest = place = 0
        while place < len(source):
            n, most = 0, min(len(answer) - start, len(source) - place)
            while n < most and answer[start + n] == source[place + n]:
                n += 1
            longest = max(longest, n)
            place += max(n, 1)
        lengths.append(longest)
        start += max(longest, 1)
    return lengths
