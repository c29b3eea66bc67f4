"""TASKS.csv of a gym: what `mttl.tasks.folder.Gym` reads of its tasks beside their files."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from mttl.io.errors import TaskError
from mttl.io.files import write_text
from mttl.io.reading import read_table
from mttl.tasks.task import Task

COLUMNS = ("task", "metric", "category", "description")


def update_task_table(gym: Path, tasks: Iterable[Task]) -> None:
    """Write tasks into the table of a gym; rows of other tasks, and further columns, stay."""
    path = gym / "TASKS.csv"
    found = read_table(path, TaskError, ["task"]) if path.exists() else []
    rows = {row["task"]: row for row in found}
    for task in tasks:
        new = {
            column: str(getattr(task, column if column != "task" else "name")) for column in COLUMNS
        }
        rows[task.name] = rows.get(task.name, {}) | new
    text = io.StringIO()
    columns = list(dict.fromkeys([*COLUMNS, *(found[0] if found else ())]))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    write_text(path, text.getvalue())
