"""Metrics of answers as torchmetrics metrics, exact across processes."""

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torchmetrics import Metric

from mttl.io.errors import ConfigError, raised_as
from mttl.metrics.metric_names import (
    COMPARISONS,
    IGNORES,
    JOINT_SCORES,
    OF_OTHER_TASKS,
    TEXT_METRIC,
    TaskMetric,
    check_metric,
    split_metric,
)
from mttl.plugins import classes as plugins
from mttl.plugins.classes import find_class, make
from mttl.plugins.describe import described
from mttl.plugins.parts import PARTS
from mttl.runtime.processes import gathered


class TextMetric(Metric):
    """A score of rows between -1 and 1; NaN without rows.

    The states of rows are gathered as objects, independent of the model's precision.
    """

    full_state_update = False
    higher_is_better = True
    reads_references = True

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    @abstractmethod
    def row(self, prediction: str, accepted: Sequence[str]) -> Any:
        """Return the state of an answer and its accepted ones."""

    @abstractmethod
    def score(self, rows: Sequence[Any]) -> float:
        """Return the score of the states of all rows."""

    def update(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add predictions, and the accepted answers of each."""
        self._rows += [self.row(*pair) for pair in zip(predictions, references, strict=True)]

    def compute(self) -> Float64[Tensor, ""]:
        """Return the score of all processes on the CPU; not every device supports float64."""
        rows = [row for own in gathered(self._rows) for row in own]
        return torch.tensor(self.score(rows) if rows else math.nan, dtype=torch.float64)

    def reset(self) -> None:
        super().reset()
        self._rows: list[Any] = []
        # A process may have no row of a task; the result is NaN, without a warning.
        self._update_count = 1


class MeanComparison(TextMetric):
    """Mean over rows of the best comparison with any accepted answer."""

    @abstractmethod
    def compare(self, answer: str, reference: str) -> float:
        """Return the score of an answer."""

    def row(self, prediction: str, accepted: Sequence[str]) -> float:
        return max(self.compare(prediction.strip(), reference) for reference in accepted)

    def score(self, rows: Sequence[float]) -> float:
        return math.fsum(rows) / len(rows)


class FunctionComparison(MeanComparison):
    """Mean of the best comparisons by a function."""

    def __init__(self, function: Callable[[str, str], float]) -> None:
        super().__init__()
        self.function = function

    def compare(self, answer: str, reference: str) -> float:
        return self.function(answer, reference)


class PatternMatch(FunctionComparison):
    """Share of answers that match a reference as a pattern; the first of several is a text."""

    def row(self, prediction: str, accepted: Sequence[str]) -> float:
        same = len(accepted) > 1 and prediction.strip() == accepted[0]
        return max(float(same), super().row(prediction, accepted[1:] or accepted))


class JointScore(TextMetric):
    """Score of all pairs of label, the first reference, and answer by one function."""

    def __init__(self, function: Callable[[Sequence[tuple[str, str]]], float]) -> None:
        super().__init__()
        self.function = function

    def row(self, prediction: str, accepted: Sequence[str]) -> tuple[str, str]:
        return accepted[0], prediction.strip()

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
    if name == TEXT_METRIC:
        return TokenProbability()
    if name in JOINT_SCORES:
        given = {"options": metric.options} if name == "Matthew-Correlation" else {}
        return JointScore(partial(JOINT_SCORES[name], **given))
    if name in COMPARISONS:
        form = PatternMatch if name == "regex" else FunctionComparison
        own = {} if metric.published else OF_OTHER_TASKS
        return form((COMPARISONS | own)[name])
    return make(find_class(plugins.METRICS, name), {}, {})


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
