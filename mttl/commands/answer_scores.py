"""Scores of answered rows, by task and metric."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mttl.inference.input_table import Rows, references_of, text_of
from mttl.io.errors import ConfigError
from mttl.metrics.metric_names import TaskMetric, check_metric
from mttl.plugins import classes as plugins
from mttl.runtime.command import say
from mttl.runtime.text_table import TextTable
from mttl.tasks.task import published_sums


class TaskScore(NamedTuple):
    """Score of a task's answers, as a fraction, and their number."""

    task: str
    metric: str
    score: float
    n: int


def check_metrics(names: Sequence[str], what: str) -> None:
    """Check the names and settings of metrics, before anything is answered or scored."""
    for name in names:
        from mttl.metrics.crossfit import build_metric  # slow, like its libraries

        check_metric(name, ConfigError, what)
        if plugins.METRICS.is_plugin(name):
            plugins.find_class(plugins.METRICS, name, trusted=True)
        build_metric(name)


def reads_references(name: str) -> bool:
    """Return whether a metric reads reference answers, as all do that do not say otherwise."""
    from mttl.metrics.crossfit import build_metric

    return bool(getattr(build_metric(name), "reads_references", True))


def score_rows(
    rows: Rows,
    tasks: Sequence[str],
    answers: Sequence[Any],
    metrics: Mapping[str, Sequence[str]],
    choices: Sequence[Sequence[str]] = (),
) -> list[TaskScore]:
    """Return the scores of rows with reference answers; rows of the task ``""`` are left out.

    Metrics are by task, by default ``exact``; those that read no references also score a task
    without any. A warning is printed if many answers are right only because a metric ignores
    differences, such as case.
    """
    references, scores = [references_of(row) for row in rows], []
    for task in dict.fromkeys(filter(None, tasks)):
        from mttl.metrics.crossfit import ignored_differences, score_answers

        own = [p for p, name in enumerate(tasks) if name == task]
        places = [p for p in own if references[p]] or own
        given = [answers[p] for p in places], [references[p] for p in places]
        sources = [{"input": text_of(rows[p], "input"), "columns": rows[p]} for p in places]
        published, options = task in published_sums(), choices[places[0]] if choices else ()
        for name in metrics.get(task, ["exact"]):
            if not references[places[0]] and reads_references(name):
                continue
            metric = TaskMetric(name, published=published, options=options)
            score = score_answers(metric, *given, sources)
            scores.append(TaskScore(task, name, score, len(places)))
            if differing := ignored_differences(metric, task, *given):
                say(differing, stderr=True)
    return scores


def score_table(scores: Sequence[TaskScore]) -> TextTable:
    """Return a table of scores in percent: a row per task, a column per metric."""
    metrics = dict.fromkeys(one.metric for one in scores)
    table = TextTable("scores in %", digits=1).words("task", *metrics).numbers("answers")
    for task, n in {one.task: one.n for one in scores}.items():
        own = {one.metric: 100 * one.score for one in scores if one.task == task}
        table.add(task, *(own.get(metric, "") for metric in metrics), n)
    return table
