"""The tasks of CrossFit by name.

References:
    Ye, Lin and Ren, CrossFit: A Few-shot Learning Challenge for Cross-task Generalization in NLP,
    EMNLP 2021, arXiv:2104.08835.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from mttl.io.errors import TaskError, nearest
from mttl.metrics.metric_names import MetricName
from mttl.tasks.task import Task
from mttl.tasks.task_file import parse_tasks


@cache
def crossfit() -> Mapping[str, Task]:
    """Return the 160 tasks by name, in alphabetical order."""
    folder = files("mttl.tasks").joinpath("crossfit")
    tasks = {}
    for file in folder.iterdir():
        if file.name.endswith(".yaml"):
            tasks |= parse_tasks(file.read_text("utf-8"), f"crossfit/{file.name}")
    return MappingProxyType(dict(sorted(tasks.items())))


def metric_of(name: str) -> MetricName:
    """Return the name of a CrossFit task's metric.

    Raises:
        TaskError: If it is none of the 160.
    """
    if name not in crossfit():
        raise TaskError(
            f"the metric of the task '{name}' is unknown: it is none of CrossFit's."
            f"{nearest(name, crossfit())} Name its metric in TASKS.csv of the gym (columns "
            "task,metric)"
        )
    return crossfit()[name].metric
