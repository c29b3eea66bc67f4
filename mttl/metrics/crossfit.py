"""The seven metrics of CrossFit as torchmetrics metrics, exact across processes.

All take ``update(predictions, references)`` with one list of accepted answers per prediction, and
return a number between 0 and 1 (the two correlations: between -1 and 1). Without any row the
result is NaN.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional import matthews_corrcoef, pearson_corrcoef

from mttl.errors import nearest
from mttl.metrics.answer_scores import best, exact_match, rouge_l, same_ignoring_case, word_f1
from mttl.metrics.text_metric import TextMetric, check_rows


class MeanComparison(TextMetric):
    """The mean over rows of the best comparison with any accepted answer.

    Args:
        compare: Scores one answer against one reference, from 0 to 1.
    """

    total: Tensor
    count: Tensor

    def __init__(self, compare: Callable[[str, str], float]) -> None:
        super().__init__()
        self.compare = compare
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add rows."""
        check_rows(predictions, references)
        for prediction, accepted in zip(predictions, references, strict=True):
            self.total += best(self.compare, prediction, accepted)
        self.count += len(predictions)

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean."""
        return self.total / self.count


class ClassificationF1(TextMetric):
    """Macro F1 over the strings themselves; the first reference is the label.

    A class is any string that stands among the labels or the predictions, so an answer that is no
    label adds a class with F1 0.
    """

    characters: list[Tensor]
    lengths: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        # Strings as bytes, label and prediction in turn: what processes can exchange exactly.
        self.add_rows_state("characters", torch.empty(0, dtype=torch.uint8))
        self.add_rows_state("lengths", torch.empty(0, dtype=torch.int64))

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add rows."""
        check_rows(predictions, references)
        texts = [
            text.encode()
            for prediction, accepted in zip(predictions, references, strict=True)
            for text in (accepted[0], prediction.strip())
        ]
        self.characters.append(_bytes(b"".join(texts)).to(self.device))
        lengths = torch.tensor([len(text) for text in texts], dtype=torch.int64)
        self.lengths.append(lengths.to(self.device))

    def compute(self) -> Float[Tensor, ""]:
        """Return the unweighted mean of the classes' F1."""
        texts, start = [], 0
        data = self.rows("characters").cpu().numpy().tobytes()
        for length in self.rows("lengths").tolist():
            texts.append(data[start : start + length])
            start += length
        labels, predictions = texts[0::2], texts[1::2]
        classes = sorted(set(texts))
        if not classes:
            return torch.tensor(math.nan, device=self.device)
        scores = []
        for name in classes:
            hits = sum(a == b == name for a, b in zip(labels, predictions, strict=True))
            scores.append(2 * hits / (labels.count(name) + predictions.count(name)))
        return torch.tensor(sum(scores) / len(scores), device=self.device)


class NumberMetric(TextMetric):
    """Base of the correlations: pairs of numbers, label first."""

    pairs: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_rows_state("pairs", torch.empty(0, 2))

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add rows; the first reference counts."""
        check_rows(predictions, references)
        pairs = [
            (self.number(accepted[0]), self.number(prediction.strip()))
            for prediction, accepted in zip(predictions, references, strict=True)
        ]
        added = torch.tensor(pairs, dtype=torch.float32).view(-1, 2)
        self.pairs.append(added.to(self.device))

    def number(self, text: str) -> float:
        """Return the number that a text stands for."""
        raise NotImplementedError


class MatthewsCorrelation(NumberMetric):
    """Matthews correlation of two classes: ``acceptable`` against everything else."""

    def number(self, text: str) -> float:
        """Return 1 for ``acceptable``, else 0."""
        return float(text == "acceptable")

    def compute(self) -> Float[Tensor, ""]:
        """Return the correlation; 0 where label or prediction is constant, as scikit-learn does."""
        pairs = self.rows("pairs")
        if not len(pairs):
            return torch.tensor(math.nan, device=self.device)
        labels, predictions = pairs.long().unbind(1)
        if len(labels.unique()) < 2 or len(predictions.unique()) < 2:
            return torch.tensor(0.0, device=self.device)
        return matthews_corrcoef(predictions, labels, task="binary")


class PearsonCorrelation(NumberMetric):
    """Pearson's correlation of numbers; NaN where an answer is no number or all are equal."""

    def number(self, text: str) -> float:
        """Return the number, or NaN."""
        try:
            return float(text)
        except ValueError:
            return math.nan

    def compute(self) -> Float[Tensor, ""]:
        """Return the correlation."""
        # In double precision, which not every device has.
        pairs = self.rows("pairs").cpu().double()
        undefined = len(pairs) < 2 or not bool(torch.isfinite(pairs).all())
        labels, predictions = pairs.unbind(1)
        if undefined or len(labels.unique()) < 2 or len(predictions.unique()) < 2:
            return torch.tensor(math.nan, device=self.device)
        return pearson_corrcoef(predictions, labels).to(self.device, torch.float32)


METRICS: dict[str, Callable[[], Metric]] = {
    "ACC": lambda: MeanComparison(same_ignoring_case),
    "EM": lambda: MeanComparison(exact_match),
    "QA-F1": lambda: MeanComparison(word_f1),
    "Rouge-L": lambda: MeanComparison(rouge_l),
    "Classification-F1": ClassificationF1,
    "Matthew-Correlation": MatthewsCorrelation,
    "Pearson-Correlation": PearsonCorrelation,
}


def build_metric(name: str) -> Metric:
    """Return a metric by the name that CrossFit gives it.

    Args:
        name: One of `METRICS`.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in METRICS:
        raise ValueError(
            f"metric ('{name}') must be one of {', '.join(METRICS)}.{nearest(name, METRICS)}"
        )
    return METRICS[name]()


def _bytes(text: bytes) -> UInt8[Tensor, "n"]:
    if not text:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def score_answers(
    name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
    """Return the score of a list of answers."""
    metric = build_metric(name)
    metric.update(predictions, references)
    return float(metric.compute())
