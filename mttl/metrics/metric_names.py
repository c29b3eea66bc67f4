"""Names of metrics and their functions, available without importing PyTorch."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from mttl.io.errors import nearest
from mttl.metrics import answer_scores as scores
from mttl.metrics.label_scores import macro_f1, matthews_correlation, pearson_correlation
from mttl.metrics.spans import span_f1, tag_accuracy
from mttl.metrics.trees import attachment_score
from mttl.plugins.classes import METRICS
from mttl.plugins.describe import described
from mttl.plugins.parts import PARTS

TEXT_METRIC = "token-probability"
# The score of an answer and an accepted one …
COMPARISONS: dict[str, Callable[[str, str], float]] = {
    "exact": partial(scores.exact_match, normalise=str),
    "accuracy": partial(scores.exact_match, normalise=str),
    "json": scores.same_json,
    "regex": scores.matches,
    "f1": partial(scores.word_f1, normalise=str),
    "rouge": scores.rouge_f,
    "ACC": partial(scores.exact_match, normalise=str.lower),
    "EM": scores.exact_match,
    "QA-F1": scores.word_f1,
    "Rouge-L": scores.rouge_l,
}
# … also of tasks that are not CrossFit's, in whose scoring answers of only articles or punctuation
# equal every other one, or none.
OF_OTHER_TASKS: dict[str, Callable[[str, str], float]] = {
    "EM": partial(scores.exact_match, normalise=scores.normalise_some),
    "QA-F1": partial(scores.word_f1, normalise=scores.normalise_some),
    "Rouge-L": scores.rouge_l_or_same,
}
# The score of all pairs of label and answer.
JOINT_SCORES: dict[str, Callable[..., float]] = {
    "Classification-F1": macro_f1,
    "Matthew-Correlation": matthews_correlation,
    "Pearson-Correlation": pearson_correlation,
    "span-F1": span_f1,
    "span-F1-strict": partial(span_f1, strict=True),
    "tag-accuracy": tag_accuracy,
    "UAS": partial(attachment_score, labelled=False),
    "LAS": partial(attachment_score, labelled=True),
}
METRIC_NAMES = (*COMPARISONS, *JOINT_SCORES, TEXT_METRIC, *PARTS["metrics"])
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
