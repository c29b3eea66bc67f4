"""Scores of n-grams that answers share with their references, by torchmetrics."""

from collections.abc import Sequence
from typing import Any

from torchmetrics.functional.text import chrf_score, sacre_bleu_score

from mttl.metrics.crossfit import MeanComparison, TextMetric


class Bleu(TextMetric):
    """BLEU of all answers with the tokenizer 13a, without smoothing.

    References:
        Papineni, Roukos, Ward and Zhu, *BLEU: a Method for Automatic Evaluation of Machine
        Translation*, ACL 2002. Post, *A Call for Clarity in Reporting BLEU Scores*, WMT 2018,
        arXiv:1804.08771.
    """

    def row(self, prediction: str, accepted: Sequence[str]) -> tuple[str, list[str]]:
        return prediction.strip(), list(accepted)

    def score(self, rows: Sequence[tuple[str, list[str]]]) -> float:
        answers, references = zip(*rows, strict=True)
        return float(sacre_bleu_score(answers, references))


class ChrF(MeanComparison):
    """Mean chrF2 of the answers: F-score of character n-grams, averaged over lengths up to 6.

    References:
        Popović, *chrF: character n-gram F-score for automatic MT evaluation*, WMT 2015.
    """

    def compare(self, answer: str, reference: str) -> float:
        # One row at a time: of corpora, torchmetrics 1.9 omits the references of answers that
        # score 0.
        found: Any = chrf_score([answer], [[reference]], n_word_order=0)
        return float(found)
