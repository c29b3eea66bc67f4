"""Read tasks from a YAML file: first the keys that they share, then one mapping per task.

    category: classification/topic
    kind: classification
    tasks:
      ag_news:
        source: {path: ag_news, test: test}
        input: "{text}"
        output: "{label|name}"
        labels: [World, Sports, Business, Sci/Tech]
        metric: Classification-F1

A key above `tasks` holds for all of them; a task's own goes before it. `docs/tasks.md` explains
the keys.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mttl.io import yaml12
from mttl.io.errors import TaskError
from mttl.io.reading import read_text
from mttl.tasks.md5_sums import published_sums
from mttl.tasks.task import FILE_ENDINGS, Holdout, Source, Task
from mttl.tasks.task_keys import (
    ALL,
    HOLDOUT_KEYS,
    MAPPING,
    SOURCE_KEYS,
    TASK_KEYS,
    check,
    check_keys,
)
from mttl.tasks.template import compile_condition, compile_template

_SHOTS = {"classification": 16, "text-to-text": 32}
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

_REQUIRED = ("source", "kind", "input", "output", "metric")


def load_tasks(path: str | Path) -> Mapping[str, Task]:
    """Read the tasks of a file.

    Args:
        path: A YAML file. Paths of data files in it are relative to its folder.

    Returns:
        The tasks by name, in the order of the file.

    Raises:
        TaskError: If the file cannot be read, a task in it is malformed (file, task, key, value
            and what is allowed), or has the name of one of CrossFit's.
    """
    path = Path(path)
    text = read_text(path, TaskError)
    tasks = parse_tasks(text, str(path), path.resolve().parent)
    for name in tasks:
        if name in published_sums():
            raise TaskError(
                f"'{path}' defines '{name}', which is a task of CrossFit's: give it another name."
            )
    return tasks


def parse_tasks(text: str, place: str, folder: Path | None = None) -> dict[str, Task]:
    """Read the tasks of a document."""
    try:
        tree = yaml12.parse(text)
    except yaml12.YAMLError as error:
        raise TaskError(f"{place}: {yaml12.problem(error)}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("tasks"), dict) or not tree["tasks"]:
        raise TaskError(f"{place}: there must be a key 'tasks' with the tasks by name")
    shared = {key: value for key, value in tree.items() if key != "tasks"}
    check_keys(shared, {**TASK_KEYS, "tasks": MAPPING}, place)
    tasks = {}
    for name, own in tree["tasks"].items():
        if type(name) is int and re.search(rf"(?m)\b{name}\s*:", text):  # as it is written
            name = str(name)
        where = f"{place}, task '{name}'"
        if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
            raise TaskError(
                f"{where}: a name must be letters, digits, '_', '-' and '.', as it names files; "
                "quote it if it looks like a number or a boolean"
            )
        check(own, MAPPING, where)
        keys = {**shared, **own}
        if isinstance(own.get("source"), dict) and isinstance(shared.get("source"), dict):
            keys["source"] = {**shared["source"], **own["source"]}
        tasks[name] = _task(name, keys, where, folder or Path())
    return tasks


def _task(name: str, keys: dict[str, Any], where: str, folder: Path) -> Task:
    check_keys(keys, TASK_KEYS, where)
    missing = [key for key in _REQUIRED if key not in keys]
    if missing:
        raise TaskError(f"{where}: the key {' and '.join(map(repr, missing))} is missing")
    task = Task(
        **{
            "k": _SHOTS[keys["kind"]],
            "category": "other/other",
            "description": "",
            **keys,
            "name": name,
            "labels": tuple(map(str.strip, keys.get("labels", ()))),
            "source": _source(keys["source"], f"{where}, source", folder),
            **({"k": None} if keys.get("k") == ALL else {}),
        }
    )
    if task.k is None and task.source.dev is None:
        raise TaskError(
            f"{where}: k is '{ALL}', and no line of train would be left for dev: name a file or a "
            "split of its own in source, with 'dev', or make k a number"
        )
    if len(set(task.labels)) != len(task.labels):
        raise TaskError(f"{where}: labels names a label twice: {', '.join(task.labels)}")
    if task.category.count("/") != 1:
        raise TaskError(f"{where}: category is '{task.category}'; it must read 'one/two'")
    if (task.references == "distinct") is not bool(re.search(r"\|set\b", task.output)):
        raise TaskError(
            f"{where}: 'references: distinct' goes with the filter 'set' in the output, and only "
            f"with it; they are '{task.references}' and '{task.output}'"
        )
    try:
        compile_template(task.input, task.labels)
        compile_template(task.output, task.labels)
        if task.rows is not None:
            compile_condition(task.rows, task.labels)
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from error
    return task


def _source(keys: dict[str, Any], where: str, folder: Path) -> Source:
    check_keys(keys, SOURCE_KEYS, where)
    if "test" in keys and "holdout" in keys:
        raise TaskError(f"{where}: 'holdout' cuts train where there is no 'test'; leave one out")
    share = keys.get("test_share")
    if share is not None and ("test" not in keys or not 0 < share <= 1):
        raise TaskError(
            f"{where}: test_share is {share}; it must be a share of 'test', above 0 up to 1"
        )
    if "path" not in keys:
        if "train" not in keys:
            raise TaskError(f"{where}: name a data set of the hub (path), or a file (train)")
        sides = [key for key in ("train", "dev", "test") if key in keys]
        keys = {**keys, **{key: _file(keys[key], key, where, folder) for key in sides}}
    cut = keys.get("holdout")
    if cut is not None:
        check_keys(cut, HOLDOUT_KEYS, f"{where}, holdout")
        for key, bound in cut.items():
            if bound < 0 or (isinstance(bound, float) and bound > 1):
                raise TaskError(
                    f"{where}, holdout: {key} is {bound}; it must be a number of lines, or a share "
                    "from 0.0 to 1.0"
                )
    elif "test" not in keys:
        cut = {}
    return Source(
        **{
            "path": None,
            "train": "train",
            **keys,
            "holdout": None if cut is None else Holdout(**cut),
            "columns": tuple(keys.get("columns", ())),
            "mirrors": tuple(keys.get("mirrors", ())),
        }
    )


def _file(name: str, key: str, where: str, folder: Path) -> str:
    if not name.endswith(FILE_ENDINGS):
        allowed = ", ".join(FILE_ENDINGS)
        raise TaskError(f"{where}: {key} is '{name}'; without 'path' it must be a file ({allowed})")
    return str(folder / name)
