"""TASKS.csv of a gym: what `mttl.gym.folder.Gym` reads of its tasks beside their files."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from mttl.errors import TaskError
from mttl.files import write_text
from mttl.gym.task import Task
from mttl.reading import read_text

COLUMNS = ("task", "metric", "category", "description")


def update_task_table(gym: Path, tasks: Iterable[Task]) -> None:
    """Write tasks into the table of a gym; rows of other tasks, and further columns, stay."""
    path = gym / "TASKS.csv"
    columns, rows = _read(path) if path.exists() else ([], {})
    for task in tasks:
        new = {
            column: str(getattr(task, column if column != "task" else "name")) for column in COLUMNS
        }
        rows[task.name] = rows.get(task.name, {}) | new
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(dict.fromkeys([*COLUMNS, *columns])), restval="", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    write_text(path, text.getvalue())


def _read(path: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(read_text(path, TaskError), newline=""), strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num}: {error}.") from error
    columns = list(reader.fieldnames or [])
    if "task" not in columns or any(None in row or None in row.values() for row in rows):
        raise TaskError(
            f"'{path}' must have a column 'task' and as many cells in every row as columns; mend "
            "it, or move it away to have it written anew."
        )
    return columns, {row["task"]: row for row in rows}
