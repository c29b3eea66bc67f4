"""Metrics of answers as torchmetrics metrics, exact across processes."""

import inspect
import json
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torchmetrics import Metric

from mttl.io.errors import ConfigError, raised_as
from mttl.metrics.answer_scores import (
    exact_match,
    matches,
    normalise_some,
    rouge_f,
    rouge_l,
    rouge_l_or_same,
    same_ignoring_case,
    same_json,
    same_text,
    word_f1,
)
from mttl.metrics.metric_names import (
    IGNORES,
    TEXT_METRIC,
    TaskMetric,
    check_metric,
    split_metric,
)
from mttl.metrics.spans import span_f1, tag_accuracy
from mttl.metrics.trees import attachment_score
from mttl.plugins import classes as plugins
from mttl.plugins.classes import find_class, make
from mttl.plugins.describe import described
from mttl.plugins.parts import PARTS


class TextMetric(Metric):
    """A score of rows between -1 and 1; NaN without rows.

    The state of a row is JSON in bytes, which is gathered exactly, independent of the model's
    precision.
    """

    full_state_update = False
    higher_is_better = True
    reads_references = True
    kept: Any

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", [], dist_reduce_fx="cat")
        # A process may have no row of a task; the result is NaN, without a warning.
        self._update_count = 1

    @abstractmethod
    def row(self, prediction: str, accepted: Sequence[str]) -> Any:
        """Return the state of an answer and its accepted ones, as JSON."""

    @abstractmethod
    def score(self, rows: Sequence[Any]) -> float:
        """Return the score of the states of all rows."""

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add predictions, and the accepted answers of each."""
        pairs = zip(predictions, references, strict=True)
        lines = "".join(json.dumps(self.row(*pair)) + "\n" for pair in pairs)
        if lines:
            added = torch.frombuffer(bytearray(lines.encode()), dtype=torch.uint8)
            self.kept.append(added.to(self.device))

    def compute(self) -> Float64[Tensor, ""]:
        """Return the score on the CPU, because not every device supports float64."""
        kept = self.kept
        if not isinstance(kept, Tensor):
            kept = torch.cat([self._empty(), *kept])
        rows = [json.loads(line) for line in kept.cpu().numpy().tobytes().splitlines()]
        return torch.tensor(self.score(rows) if rows else math.nan, dtype=torch.float64)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the rows of all processes; processes without rows take part."""
        self.kept = self.kept or [self._empty()]
        super().sync(*args, **kwargs)

    def reset(self) -> None:
        super().reset()
        self._update_count = 1

    def _empty(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.device)


class MeanComparison(TextMetric):
    """Mean over rows of the best comparison with any accepted answer."""

    def __init__(self, compare: Callable[[str, str], float]) -> None:
        super().__init__()
        self.compare = compare

    def row(self, prediction: str, accepted: Sequence[str]) -> float:
        return max(self.compare(prediction.strip(), reference) for reference in accepted)

    def score(self, rows: Sequence[float]) -> float:
        return math.fsum(rows) / len(rows)


class PatternMatch(MeanComparison):
    """Share of answers that match a reference as a pattern; the first of several is a text."""

    def row(self, prediction: str, accepted: Sequence[str]) -> float:
        same = len(accepted) > 1 and prediction.strip() == accepted[0]
        return max(float(same), super().row(prediction, accepted[1:] or accepted))


class LabelMetric(TextMetric):
    """Base class of metrics that compare an answer with the first reference, the label."""

    def row(self, prediction: str, accepted: Sequence[str]) -> tuple[str, str]:
        return accepted[0], prediction.strip()


class JointScore(LabelMetric):
    """Score of all pairs of label and answer by one function."""

    def __init__(self, function: Callable[[Sequence[tuple[str, str]]], float]) -> None:
        super().__init__()
        self.function = function

    def score(self, rows: Sequence[tuple[str, str]]) -> float:
        return self.function(rows)


class TokenProbability(TextMetric):
    """Geometric mean of the probabilities of tokens, 1 / perplexity; answers are their losses."""

    def row(self, prediction: str, accepted: Sequence[str]) -> tuple[float, int]:
        losses = [float(loss) for loss in prediction.split()]
        return math.fsum(losses), len(losses)

    def score(self, rows: Sequence[tuple[float, int]]) -> float:
        n_tokens = sum(n for _, n in rows)
        return math.exp(-math.fsum(loss for loss, _ in rows) / n_tokens) if n_tokens else math.nan


class ClassificationF1(LabelMetric):
    """Macro F1 over strings.

    Classes are all strings among labels and predictions, so an answer that is not a label adds a
    class with F1 0.
    """

    def score(self, rows: Sequence[tuple[str, str]]) -> float:
        hits = Counter(label for label, answer in rows if label == answer)
        counts = Counter(chain.from_iterable(rows))
        return math.fsum(2 * hits[name] / count for name, count in counts.items()) / len(counts)


class MatthewsCorrelation(LabelMetric):
    """Matthews correlation of labels and answers.

    With two labels, the positive one is the task's first option, else CoLA's ``acceptable``, else
    the first label in alphabetical order. With more labels, each is a class, and so is any answer
    that is not a label.

    References:
        Gorodkin, *Comparing two K-category assignments by a K-category correlation coefficient*,
        Computational Biology and Chemistry 28, 2004; of two classes it is Matthews' coefficient.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        super().__init__()
        self.options = options

    def score(self, rows: Sequence[tuple[str, str]]) -> float:
        """Return the correlation; 0 if labels or answers are constant, as in scikit-learn."""
        names = dict.fromkeys([*self.options, *sorted(label for label, _ in rows)])
        if len(names) < 3:
            one = next(iter(names))
            if not self.options and "acceptable" in names:
                one = "acceptable"
            rows = [(str(label == one), str(answer == one)) for label, answer in rows]
        # Integers of any size, whose products are exact.
        n, hits = len(rows), sum(label == answer for label, answer in rows)
        labels, answers = (Counter(row[side] for row in rows) for side in (0, 1))
        spread = math.prod(n * n - sum(c * c for c in side.values()) for side in (labels, answers))
        together = sum(count * answers[name] for name, count in labels.items())
        return (n * hits - together) / math.sqrt(spread) if spread else 0.0


class PearsonCorrelation(LabelMetric):
    """Pearson's correlation of numbers; NaN if an answer is not a number or all are equal."""

    def score(self, rows: Sequence[tuple[str, str]]) -> float:
        """Return the correlation, by the arithmetic of ``scipy.stats.pearsonr``."""
        columns = np.array([[_number(text) for text in row] for row in rows]).T
        constant = any((column == column[:1]).all() for column in columns)
        if constant or not np.isfinite(columns).all():
            return math.nan
        # Very large numbers overflow, and the result is NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            labels, predictions = (_unit_vector(column) for column in columns)
            return float(np.clip(labels @ predictions, -1.0, 1.0))


METRICS: dict[str, Callable[[], Metric]] = {
    "exact": lambda: MeanComparison(same_text),
    "accuracy": lambda: MeanComparison(same_text),
    "json": lambda: MeanComparison(same_json),
    "regex": lambda: PatternMatch(matches),
    "f1": lambda: MeanComparison(partial(word_f1, normalise=str)),
    "rouge": lambda: MeanComparison(rouge_f),
    "ACC": lambda: MeanComparison(same_ignoring_case),
    "EM": lambda: MeanComparison(exact_match),
    "QA-F1": lambda: MeanComparison(word_f1),
    "Rouge-L": lambda: MeanComparison(rouge_l),
    "Classification-F1": ClassificationF1,
    "Matthew-Correlation": MatthewsCorrelation,
    "Pearson-Correlation": PearsonCorrelation,
    "span-F1": lambda: JointScore(span_f1),
    "span-F1-strict": lambda: JointScore(partial(span_f1, strict=True)),
    "tag-accuracy": lambda: JointScore(tag_accuracy),
    "UAS": lambda: JointScore(partial(attachment_score, labelled=False)),
    "LAS": lambda: JointScore(partial(attachment_score, labelled=True)),
    TEXT_METRIC: TokenProbability,
}
# In CrossFit's scoring, answers of only articles or punctuation equal every other one, or none.
OF_OTHER_TASKS: dict[str, Callable[[], Metric]] = {
    "EM": lambda: MeanComparison(partial(exact_match, normalise=normalise_some)),
    "QA-F1": lambda: MeanComparison(partial(word_f1, normalise=normalise_some)),
    "Rouge-L": lambda: MeanComparison(rouge_l_or_same),
}


def build_metric(name: str) -> Metric:
    """Return a metric by name: a built-in one, or a custom class; a `TaskMetric` has options.

    Settings follow the name, as in ``bertscore model=DIR``. Raises a `ValueError` if the name is
    unknown, and a `ConfigError` for the value of a setting.
    """
    metric = name if isinstance(name, TaskMetric) else TaskMetric(name)
    check_metric(name, ValueError, text=name == TEXT_METRIC)
    kind, given = split_metric(name)
    if kind in PARTS["metrics"]:
        known = described("metrics")[kind]["settings"]
        with raised_as(ConfigError, f"metric '{name}'", ValueError):
            settings = {
                key: int(value) if known[key]["type"] == {"type": "int"} else value
                for key, value in given.items()
            }
            return make(resolve_name(PARTS["metrics"][kind]), {}, settings)
    if name not in METRICS:
        return make(find_class(plugins.METRICS, name), {}, {})
    if name == "Matthew-Correlation":
        return MatthewsCorrelation(metric.options)
    return (METRICS if metric.published else {**METRICS, **OF_OTHER_TASKS})[name]()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _unit_vector(values: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    centred = values - values.mean()
    largest = np.abs(centred).max()
    return centred / (largest * np.linalg.norm(centred / largest))


Source = Mapping[str, Any]


def score_answers(
    name: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[Source] = (),
) -> float:
    """Return the score of a list of answers by the metric of `build_metric`.

    ``sources`` have the input and other columns of every row; see `add_answers`.
    """
    metric = build_metric(name)
    add_answers(metric, name, predictions, references, sources)
    return computed(metric)


def add_answers(
    metric: Metric,
    name: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[Source] = (),
) -> None:
    """Add answers to a metric, with their rows if its ``update`` has an argument ``rows``.

    A row has the keys ``input``, ``columns`` (other columns), ``references`` and ``options``.
    """
    given = {}
    if "rows" in inspect.signature(metric.update).parameters:
        options = list(getattr(name, "options", ()))
        pairs = zip(sources or [{}] * len(references), references, strict=True)
        given["rows"] = [{**row, "references": [*own], "options": options} for row, own in pairs]
    with plugins.plugin_call(metric):
        metric.update(predictions, references, **given)


def row_scores(
    name: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[Source],
) -> Float64[np.ndarray, "N"]:
    """Return the score of each answer alone; the arguments are those of `score_answers`."""
    metric, found = build_metric(name), []
    for answer, right, source in zip(predictions, references, sources, strict=True):
        metric.reset()
        add_answers(metric, name, [answer], [right], [source])
        found.append(computed(metric))
    if np.isnan(found).any():
        raise ConfigError(f"the metric '{name}' has no score of a single answer; choose another")
    return np.array(found)


def ignored_differences(
    name: str, task: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> str:
    """Return a warning if a tenth of the answers are right only by what the metric ignores.

    It is empty otherwise, and for tasks of CrossFit, whose metrics are published.
    """
    if name not in IGNORES or getattr(name, "published", False):
        return ""
    metric = build_metric(name)
    assert isinstance(metric, MeanComparison)
    found = [
        (answer, own[0])
        for answer, own in zip(predictions, references, strict=True)
        if answer.strip() not in own and metric.row(answer, own) == 1
    ]
    if len(found) < max(2, len(predictions) / 10):
        return ""
    return (
        f"{name} counts {len(found)} of {len(predictions)} answers of '{task}' as right that "
        f"differ from their references in {IGNORES[name]}, such as '{found[0][0][:60]}' for "
        f"'{found[0][1][:60]}'; the metric 'exact' counts them as wrong"
    )


def computed(metric: Metric) -> float:
    """Return a metric's score of all rows.

    Raises a `PluginError` if a custom metric raises an error, or its score is out of range.
    """
    with plugins.plugin_call(metric):
        score = float(metric.compute())
    if not (math.isnan(score) or -1 <= score <= 1):
        raise plugins.PluginError(
            f"the metric {type(metric).__name__} returned {score}; scores must be between -1 and "
            "1, because they are shown in %: divide in compute()"
        )
    return score
