"""Names of metrics, available without importing PyTorch."""

from collections.abc import Sequence
from typing import Literal, Self, get_args

from mttl.io.errors import nearest
from mttl.plugins.classes import METRICS

MetricName = Literal[
    "exact",
    "accuracy",
    "json",
    "regex",
    "f1",
    "rouge",
    "ACC",
    "EM",
    "QA-F1",
    "Rouge-L",
    "Classification-F1",
    "Matthew-Correlation",
    "Pearson-Correlation",
    "span-F1",
    "span-F1-strict",
    "tag-accuracy",
    "UAS",
    "LAS",
    "token-probability",
]
TEXT_METRIC = "token-probability"
METRIC_NAMES: tuple[MetricName, ...] = get_args(MetricName)
# What a metric ignores, for warnings; metrics that are meant to ignore the form are left out.
_MARKS = "case, punctuation or articles"
IGNORES = {"ACC": "case", "EM": _MARKS, "QA-F1": _MARKS, "rouge": "case or punctuation"}


def check_metric(
    name: str, error: type[Exception], what: str = "metric", *, text: bool = False
) -> None:
    """Raise an error for a metric that is not in `METRIC_NAMES` and is no custom class.

    A task of raw ``text`` has the metric `TEXT_METRIC`, and no other task has it.
    """
    if name not in METRIC_NAMES and not METRICS.is_plugin(name):
        raise error(
            f"{what} ('{name}') must be one of {', '.join(METRIC_NAMES)}, or module:Class."
            f"{nearest(name, METRIC_NAMES)}"
        )
    if (name == TEXT_METRIC) is not text:
        raise error(
            f"{what} ('{name}') must be '{TEXT_METRIC}' for tasks of the kind 'text', and cannot "
            "be it for other tasks"
        )


class TaskMetric(str):
    """Name of a task's metric, with further settings of its scores.

    A ``published`` metric scores as CrossFit does; others do not empty answers by normalisation.
    The first of the task's ``options`` is the positive label.
    """

    published: bool
    options: Sequence[str]

    def __new__(cls, name: str, *, published: bool = True, options: Sequence[str] = ()) -> Self:
        metric = super().__new__(cls, name)
        metric.published, metric.options = published, () if published else tuple(options)
        return metric
