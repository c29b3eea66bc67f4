"""Render the whole gym in memory: path -> bytes."""

import csv
import io
import json
from collections.abc import Callable

from lexical_gym.item import Item
from lexical_gym.readme import readme
from lexical_gym.sample import Files, draw
from lexical_gym.sources import source_versions
from lexical_gym.tasks import TASKS, Task, partition
from lexical_gym.words import Lexicon


def build(progress: Callable[[str], None] = lambda _: None) -> dict[str, bytes]:
    """Build every file of the gym's folder.

    Args:
        progress: Called with the name of each task before it is built.

    Returns:
        Path inside the folder -> content.

    Raises:
        MissingSourceError: If a source package is not installed.
    """
    versions = source_versions()
    lexicon = Lexicon()
    drawn: dict[str, Files] = {}
    for task in TASKS:
        progress(task.name)
        drawn[task.name] = draw(task, task.items(lexicon))
    files = {
        f"{name}/{file}": _tsv(rows) for name, of in drawn.items() for file, rows in of.items()
    }
    files["TASKS.csv"] = _table(TASKS)
    files["README.md"] = readme(TASKS, drawn, versions).encode()
    return files


def partition_json() -> bytes:
    """Return the partition file."""
    return (json.dumps(partition(), indent=2) + "\n").encode()


def _tsv(rows: list[Item]) -> bytes:
    return "".join("\t".join((row.input, *row.outputs)) + "\n" for row in rows).encode()


def _table(tasks: tuple[Task, ...]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("task", "metric", "category", "family", "description", "source"))
    for t in tasks:
        writer.writerow((t.name, t.metric, t.category, t.family, t.description, t.source))
    return text.getvalue().encode()
