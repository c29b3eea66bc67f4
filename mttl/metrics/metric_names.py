"""The names of CrossFit's seven metrics; reading them needs no torch."""

from typing import Literal, get_args

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
