"""The tasks of CrossFit by name: metric and category."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from mttl.errors import TaskError, nearest


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task.

    Attributes:
        name: As CrossFit names it.
        metric: Name of its metric; see `mttl.tasks.metrics`.
        category: Two levels, such as ``classification/nli``.
    """

    name: str
    metric: str
    category: str


@cache
def crossfit_tasks() -> Mapping[str, TaskInfo]:
    """Return the 160 tasks by name."""
    tree = yaml.safe_load(files("mttl.tasks").joinpath("crossfit.yaml").read_text("utf-8"))
    return {
        name: TaskInfo(name, metric, category)
        for category, by_metric in tree.items()
        for metric, names in by_metric.items()
        for name in names
    }


def metric_of(task: str) -> str:
    """Return the name of a CrossFit task's metric.

    Args:
        task: Name of the task.

    Raises:
        TaskError: If it is none of the 160.
    """
    tasks = crossfit_tasks()
    if task not in tasks:
        raise TaskError(
            f"the metric of the task '{task}' is unknown: it is none of CrossFit's."
            f"{nearest(task, tasks)} Name its metric in TASKS.csv of the gym (columns task,metric)"
        )
    return tasks[task].metric
