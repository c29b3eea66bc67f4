"""Render the whole gym in memory: path -> bytes."""

from collections.abc import Callable

from derived_gym.packages import source_versions
from derived_gym.rows import partition_json, table, tsv

from lexical_gym.readme import readme
from lexical_gym.sample import Files, draw
from lexical_gym.sources import PACKAGES
from lexical_gym.tasks import TASKS, partition
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
    versions = source_versions(PACKAGES, "gym")
    lexicon = Lexicon()
    drawn: dict[str, Files] = {}
    for task in TASKS:
        progress(task.name)
        drawn[task.name] = draw(task, task.items(lexicon))
    files = {f"{name}/{file}": tsv(rows) for name, of in drawn.items() for file, rows in of.items()}
    columns = ("task", "metric", "category", "family", "description", "source")
    cells = [(t.name, t.metric, t.category, t.family, t.description, t.source) for t in TASKS]
    files["TASKS.csv"] = table(columns, cells)
    files["README.md"] = readme(TASKS, drawn, versions).encode()
    return files


def settings() -> dict[str, bytes]:
    """Return the partition: path under `configs/` -> content."""
    return {"partitions/lexical.json": partition_json(partition())}
