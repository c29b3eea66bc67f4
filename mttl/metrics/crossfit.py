"""The seven metrics of CrossFit as torchmetrics metrics, exact across processes.

All take ``update(predictions, references)`` with one list of accepted answers per prediction, and
return a number between 0 and 1 (the two correlations: between -1 and 1). Without any row the
result is NaN.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor
from torchmetrics import Metric

from mttl.io.errors import nearest
from mttl.metrics.answer_scores import (
    best,
    exact_match,
    normalise_some,
    same_ignoring_case,
    word_f1,
)
from mttl.metrics.metric_names import TaskMetric
from mttl.metrics.rouge_l import rouge_l, rouge_l_or_same
from mttl.metrics.text_metric import TextMetric, check_rows
from mttl.plugins import classes as plugins
from mttl.plugins.classes import find_class, make


class NumberMetric(TextMetric):
    """Base of the metrics that make a few numbers of every row, kept in double precision."""

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
    """The mean over rows of the best comparison with any accepted answer."""

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


class LabelMetric(TextMetric):
    """Base of the metrics that compare labels; the first reference is the label."""

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

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return label and prediction of every row."""
        texts, start = [], 0
        data = self.rows("characters").cpu().numpy().tobytes()
        for length in self.rows("lengths").tolist():
            texts.append(data[start : start + length])
            start += length
        return list(zip(texts[0::2], texts[1::2], strict=True))


class ClassificationF1(LabelMetric):
    """Macro F1 over the strings themselves.

    A class is any string that stands among the labels or the predictions, so an answer that is no
    label adds a class with F1 0.
    """

    def compute(self) -> Float64[Tensor, ""]:
        """Return the unweighted mean of the classes' F1."""
        pairs = self.pairs()
        hits = Counter(label for label, answer in pairs if label == answer)
        counts = Counter(chain.from_iterable(pairs))
        scores = [2 * hits[name] / count for name, count in counts.items()]
        return double(math.fsum(scores) / len(scores) if scores else math.nan)


class MatthewsCorrelation(LabelMetric):
    """Matthews correlation of labels and answers.

    Of two labels, one is compared with everything else: the first option of the task; where it
    names none, CoLA's ``acceptable``, or the first label in alphabetical order. Of more labels,
    each is a class, and so is an answer that is not a label.

    References:
        Gorodkin, *Comparing two K-category assignments by a K-category correlation coefficient*,
        Computational Biology and Chemistry 28, 2004; of two classes it is Matthews' coefficient.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        super().__init__()
        self.options = [option.encode(errors="surrogatepass") for option in options]

    def compute(self) -> Float64[Tensor, ""]:
        """Return the correlation; 0 where label or answer is constant, as scikit-learn does."""
        pairs = self.pairs()
        names = dict.fromkeys([*self.options, *sorted(label for label, _ in pairs)])
        if len(names) < 3:
            one = next(iter(names), b"")
            if not self.options and b"acceptable" in names:
                one = b"acceptable"
            pairs = [(b"%d" % (label == one), b"%d" % (answer == one)) for label, answer in pairs]
        # Whole numbers of any size: their products are exact.
        n, hits = len(pairs), sum(label == answer for label, answer in pairs)
        labels, answers = (Counter(pair[side] for pair in pairs) for side in (0, 1))
        spread = math.prod(n * n - sum(c * c for c in side.values()) for side in (labels, answers))
        together = sum(count * answers[name] for name, count in labels.items())
        value = (n * hits - together) / math.sqrt(spread) if spread else 0.0
        return double(value if n else math.nan)


class PearsonCorrelation(NumberMetric):
    """Pearson's correlation of numbers; NaN if an answer is not a number or all are equal."""

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
# As published, an answer of articles or punctuation alone equals every other one, or none.
OF_OTHER_TASKS: dict[str, Callable[[], Metric]] = {
    "EM": lambda: MeanComparison(partial(exact_match, normalise=normalise_some)),
    "QA-F1": lambda: MeanComparison(partial(word_f1, normalise=normalise_some)),
    "Rouge-L": lambda: MeanComparison(rouge_l_or_same),
}


def build_metric(name: str) -> Metric:
    """Return a metric by the name that CrossFit gives it.

    Args:
        name: One of `METRICS`, or a custom class; a `TaskMetric` holds more.

    Raises:
        ValueError: If there is none of that name.
    """
    metric = name if isinstance(name, TaskMetric) else TaskMetric(name)
    check_metric(name, ValueError)
    if name not in METRICS:
        return make(find_class(plugins.METRICS, name), {}, {})
    if name == "Matthew-Correlation":
        return MatthewsCorrelation(metric.options)
    return (METRICS if metric.published else {**METRICS, **OF_OTHER_TASKS})[name]()


def check_metric(name: str, error: type[Exception], what: str = "metric") -> None:
    """Check that a metric is one of `METRICS`, or can be a custom class.

    Raises:
        Exception: Of the given kind, if it is neither.
    """
    if name not in METRICS and not plugins.METRICS.is_plugin(name):
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
    """Return the score of a list of answers by the metric of `build_metric`."""
    metric = build_metric(name)
    with plugins.plugin_call(metric):
        metric.update(predictions, references)
    return computed(metric)


def computed(metric: Metric) -> float:
    """Return what a metric says of all rows.

    Raises:
        PluginError: If a custom metric raises, or its score is out of range.
    """
    with plugins.plugin_call(metric):
        score = float(metric.compute())
    if not (math.isnan(score) or -1 <= score <= 1):
        raise plugins.PluginError(
            f"the metric {type(metric).__name__} scored {score}; scores lie between -1 and 1, and "
            "are shown in %: divide in compute()"
        )
    return score
