"""The names of CrossFit's seven metrics; reading them needs no torch."""

from collections.abc import Sequence
from typing import Literal, Self, get_args

MetricName = Literal[
    "ACC",
    "EM",
    "QA-F1",
    "Rouge-L",
    "Classification-F1",
    "Matthew-Correlation",
    "Pearson-Correlation",
]
METRIC_NAMES: tuple[MetricName, ...] = get_args(MetricName)


class TaskMetric(str):
    """The name of a task's metric, with what else its scores depend on.

    Args:
        name: Of the metric.
        published: Score as CrossFit does; else answers that normalisation would empty count too.
        options: The answers that the task chooses from, the positive label first.
    """

    published: bool
    options: Sequence[str]

    def __new__(cls, name: str, *, published: bool = True, options: Sequence[str] = ()) -> Self:
        """Return a name that carries the rest."""
        metric = super().__new__(cls, name)
        metric.published, metric.options = published, () if published else tuple(options)
        return metric
