"""Scores of n-grams, beside sacrebleu."""

from itertools import zip_longest
from statistics import fmean

import pytest

from mttl.metrics.crossfit import build_metric, score_answers

ANSWERS = ["The cat sat on the mat today.", "it is a small house near the sea", "he reads a book"]
REFERENCES = [
    ["The cat sat on the mat.", "A cat sat on a mat today."],
    ["It is the small house by the sea"],
    ["he reads a long book at home every day", "home"],
]


@pytest.mark.parametrize("answers", [ANSWERS, [ANSWERS[0], "", "\u00e9"]])
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_scores_equal_sacrebleu(metric, answers):
    package = pytest.importorskip("sacrebleu")
    if metric == "bleu":
        expected = package.corpus_bleu(answers, [*zip_longest(*REFERENCES)]).score
    else:  # the average of F-scores, as in Popović's script
        score = package.CHRF(eps_smoothing=True).sentence_score
        expected = fmean(score(*pair).score for pair in zip(answers, REFERENCES, strict=True))
    batches = build_metric(metric)
    for answer, references in zip(answers, REFERENCES, strict=True):
        batches.update([answer], [references])
    # torchmetrics computes in single precision.
    assert float(batches.compute()) == pytest.approx(expected / 100, rel=1e-5)
    assert score_answers(metric, answers, REFERENCES) == float(batches.compute())
