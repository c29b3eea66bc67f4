"""The seven metrics of CrossFit as torchmetrics metrics, exact across processes.

All take ``update(predictions, references)`` with one list of accepted answers per prediction, and
return a number between 0 and 1 (the two correlations: between -1 and 1). Without any row the
result is NaN.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor
from torchmetrics import Metric

from mttl import own_classes
from mttl.errors import nearest
from mttl.metrics.answer_scores import best, exact_match, same_ignoring_case, word_f1
from mttl.metrics.rouge_l import rouge_l
from mttl.metrics.text_metric import TextMetric, check_rows
from mttl.own_classes import find_class, make


class NumberMetric(TextMetric):
    """Base of the metrics that make a few numbers of every row, kept in double precision.

    Args:
        n_numbers: How many.
    """

    bits: list[Tensor]

    def __init__(self, n_numbers: int) -> None:
        super().__init__()
        self.add_rows_state("bits", torch.empty(0, n_numbers, dtype=torch.int64))

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add rows."""
        check_rows(predictions, references)
        rows = [
            self.numbers_of(prediction, accepted)
            for prediction, accepted in zip(predictions, references, strict=True)
        ]
        if rows:
            added = torch.tensor(rows, dtype=torch.float64).view(torch.int64)
            self.bits.append(added.to(self.device))

    def numbers_of(self, prediction: str, accepted: Sequence[str]) -> tuple[float, ...]:
        """Return the numbers of a row."""
        raise NotImplementedError


class MeanComparison(NumberMetric):
    """The mean over rows of the best comparison with any accepted answer.

    Args:
        compare: Scores one answer against one reference, from 0 to 1.
    """

    def __init__(self, compare: Callable[[str, str], float]) -> None:
        super().__init__(1)
        self.compare = compare

    def numbers_of(self, prediction: str, accepted: Sequence[str]) -> tuple[float, ...]:
        """Return the row's score."""
        return (best(self.compare, prediction, accepted),)

    def compute(self) -> Float64[Tensor, ""]:
        """Return the mean, whatever the order of the rows."""
        scores = self.numbers("bits")[:, 0]
        return double(math.fsum(scores) / len(scores) if len(scores) else math.nan)


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
            text.encode(errors="surrogatepass")
            for prediction, accepted in zip(predictions, references, strict=True)
            for text in (accepted[0], prediction.strip())
        ]
        self.characters.append(_bytes(b"".join(texts)).to(self.device))
        lengths = torch.tensor([len(text) for text in texts], dtype=torch.int64)
        self.lengths.append(lengths.to(self.device))

    def compute(self) -> Float64[Tensor, ""]:
        """Return the unweighted mean of the classes' F1."""
        texts, start = [], 0
        data = self.rows("characters").cpu().numpy().tobytes()
        for length in self.rows("lengths").tolist():
            texts.append(data[start : start + length])
            start += length
        labels, predictions = texts[0::2], texts[1::2]
        hits = Counter(a for a, b in zip(labels, predictions, strict=True) if a == b)
        scores = [2 * hits[name] / count for name, count in Counter(texts).items()]
        return double(math.fsum(scores) / len(scores) if scores else math.nan)


class MatthewsCorrelation(NumberMetric):
    """Matthews correlation of two classes: ``acceptable`` against everything else."""

    def __init__(self) -> None:
        super().__init__(2)

    def numbers_of(self, prediction: str, accepted: Sequence[str]) -> tuple[float, ...]:
        """Return whether the label, and whether the answer, is ``acceptable``."""
        return float(accepted[0] == "acceptable"), float(prediction.strip() == "acceptable")

    def compute(self) -> Float64[Tensor, ""]:
        """Return the correlation; 0 where label or prediction is constant, as scikit-learn does."""
        pairs = self.numbers("bits").astype(bool).tolist()
        if not pairs:
            return double(math.nan)
        # Whole numbers of any size: their products are exact.
        n, both = len(pairs), sum(label and answer for label, answer in pairs)
        labels, answers = (sum(column) for column in zip(*pairs, strict=True))
        spread = labels * (n - labels) * answers * (n - answers)
        return double((n * both - labels * answers) / math.sqrt(spread) if spread else 0.0)


class PearsonCorrelation(NumberMetric):
    """Pearson's correlation of numbers; NaN where an answer is no number or all are equal."""

    def __init__(self) -> None:
        super().__init__(2)

    def numbers_of(self, prediction: str, accepted: Sequence[str]) -> tuple[float, ...]:
        """Return label and answer as numbers, or NaN."""
        return _number(accepted[0]), _number(prediction.strip())

    def compute(self) -> Float64[Tensor, ""]:
        """Return the correlation, by the arithmetic of ``scipy.stats.pearsonr``."""
        columns = self.numbers("bits").T
        constant = any((column == column[:1]).all() for column in columns)
        if constant or not np.isfinite(columns).all():
            return double(math.nan)
        # Numbers near the largest double overflow on the way: then the result is NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            labels, predictions = (_unit_vector(column) for column in columns)
            return double(float(np.clip(labels @ predictions, -1.0, 1.0)))


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
        name: One of `METRICS`, or a class of one's own.

    Raises:
        ValueError: If there is none of that name.
    """
    check_metric(name, ValueError)
    if name not in METRICS:
        return make(find_class(own_classes.METRICS, name), {}, {})
    return METRICS[name]()


def check_metric(name: str, error: type[Exception], what: str = "metric") -> None:
    """Check that a metric is one of `METRICS`, or can be a class of one's own.

    Args:
        name: Of the metric.
        error: What to raise.
        what: Whose metric it is, for the message.

    Raises:
        Exception: Of the given kind, if it is neither.
    """
    if name not in METRICS and not own_classes.METRICS.is_own(name):
        allowed = ", ".join(METRICS)
        raise error(f"{what} ('{name}') must be one of {allowed}.{nearest(name, METRICS)}")


def double(value: float) -> Float64[Tensor, ""]:
    """Return a result, on the CPU: not every device has doubles."""
    return torch.tensor(value, dtype=torch.float64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unit_vector(values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    centred = values - values.mean()
    largest = np.abs(centred).max()
    return centred / (largest * np.linalg.norm(centred / largest))


def _bytes(text: bytes) -> UInt8[Tensor, "n"]:
    if not text:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def score_answers(
    name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
    """Return the score of a list of answers."""
    metric = build_metric(name)
    with own_classes.calling(metric):
        metric.update(predictions, references)
    return computed(metric)


def computed(metric: Metric) -> float:
    """Return what a metric says of all rows.

    Raises:
        OwnClassError: If one of one's own raises, or says what no table takes.
    """
    with own_classes.calling(metric):
        score = float(metric.compute())
    if not (math.isnan(score) or -1 <= score <= 1):
        raise own_classes.OwnClassError(
            f"the metric {type(metric).__name__} scored {score}; scores lie between -1 and 1, and "
            "are shown in per cent: divide in compute()"
        )
    return score
