"""Names of metrics, available without importing PyTorch."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from mttl.io.errors import nearest
from mttl.plugins.classes import METRICS
from mttl.plugins.describe import described
from mttl.plugins.parts import PARTS

TEXT_METRIC = "token-probability"
METRIC_NAMES: tuple[str, ...] = (
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
    TEXT_METRIC,
    *PARTS["metrics"],
)
# What a metric ignores, for warnings; metrics that are meant to ignore the form are left out.
_MARKS = "case, punctuation or articles"
IGNORES = {"ACC": "case", "EM": _MARKS, "QA-F1": _MARKS, "rouge": "case or punctuation"}


def split_metric(metric: str) -> tuple[str, dict[str, str]]:
    """Return the name and the settings of a metric such as ``bertscore model=DIR``."""
    name, *settings = re.split(r"\s+(?=\w+=)", metric.strip())
    return name, dict(one.split("=", 1) for one in settings)


def metric_problem(metric: str) -> str:
    """Return the requirement that the name or settings of a built-in metric violate, or ``""``."""
    name, settings = split_metric(metric)
    if name not in METRIC_NAMES:
        names = ", ".join(METRIC_NAMES)
        return f"must be one of {names}, or in a run module:Class.{nearest(name, METRIC_NAMES)}"
    known = described("metrics")[name]["settings"] if name in PARTS["metrics"] else {}
    required = {key for key, one in known.items() if "default" not in one}
    if required <= settings.keys() <= known.keys():
        return ""
    forms = (f"{key}=..." if key in required else f"[{key}=...]" for key in known)
    wrong = next((key for key in settings if key not in known), None)
    has = "" if wrong is None else f"; it has no setting '{wrong}'.{nearest(wrong, known)}"
    return f"must have the form '{' '.join([name, *forms])}'{has}"


def folder_problem(metric: str) -> str:
    """Return the requirement that the folder of a metric's model violates, or ``""``."""
    folder = split_metric(metric)[1].get("model")
    if folder is None or (Path(folder) / "config.json").is_file():
        return ""
    return f"must name a folder with a model of transformers (save_pretrained), not '{folder}'"


def check_metric(
    name: str, error: type[Exception], what: str = "metric", *, text: bool = False
) -> None:
    """Raise an error for a metric that is not built in, has wrong settings, and is no custom class.

    A task of raw ``text`` has the metric `TEXT_METRIC`, and no other task has it.
    """
    if (problem := metric_problem(name)) and not METRICS.is_plugin(name):
        raise error(f"{what} ('{name}') {problem}")
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
