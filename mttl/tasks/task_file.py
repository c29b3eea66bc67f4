"""Read tasks from a YAML file; `docs/reference/task_files.md` describes the keys.

A key above `tasks` holds for all of them; a task's own key takes precedence.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from mttl.io import yaml12
from mttl.io.errors import TaskError, raised_as
from mttl.io.reading import read_text, shown
from mttl.io.record import check
from mttl.metrics.metric_names import TEXT_METRIC, split_metric
from mttl.tasks import dialogue
from mttl.tasks.dialogue_files import DialogueFormat
from mttl.tasks.rows import ALL_ENDINGS, is_saved
from mttl.tasks.task import ALL, CHOICES, FROM_ROWS, Task, published_sums
from mttl.tasks.template import compile_condition, compile_template

# Metric and output template of kinds with heads.
_HEADED = {
    "tokens": ("tag-accuracy", "{words}", "{tags}"),
    "label": ("accuracy", "{premise} [SEP] {hypothesis}", "{label}"),
    "tree": ("LAS", "{words}", "{tree}"),
}
_SHOTS = {"classification": 16} | dict.fromkeys(("text-to-text", "dialogue", *_HEADED), 32)
TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def load_tasks(path: str | Path) -> Mapping[str, Task]:
    """Return the tasks of a YAML file by name; data files are relative to its folder.

    Raises a `TaskError` if the file cannot be read, or a task is malformed or has the name of a
    task of CrossFit.
    """
    path = Path(path)
    tasks = parse_tasks(read_text(path, TaskError), str(path), path.resolve().parent)
    for name in tasks:
        if name in published_sums():
            raise TaskError(
                f"'{path}' defines '{name}', which is the name of a task of CrossFit; rename it."
            )
    return tasks


@cache
def crossfit() -> Mapping[str, Task]:
    """Return the 160 tasks of CrossFit by name, in alphabetical order."""
    folder = files("mttl.tasks").joinpath("crossfit")
    tasks = {}
    for file in folder.iterdir():
        if file.name.endswith(".yaml"):
            tasks |= parse_tasks(file.read_text("utf-8"), f"crossfit/{file.name}")
    return MappingProxyType(dict(sorted(tasks.items())))


def parse_tasks(text: str, place: str, folder: Path | None = None) -> dict[str, Task]:
    """Return the tasks of a YAML text."""
    tree = yaml12.parse_at(place, text, TaskError)
    if not isinstance(tree, dict) or not isinstance(tree.get("tasks"), dict) or not tree["tasks"]:
        raise TaskError(f"{place}: the key 'tasks' with the tasks by name is missing")
    shared = {key: value for key, value in tree.items() if key != "tasks"}
    tasks = {}
    for name, own in tree["tasks"].items():
        if type(name) is int and re.search(rf"(?m)\b{name}\s*:", text):  # as written
            name = str(name)
        where = f"{place}, task '{name}'"
        keys = {**shared, **own} if isinstance(own, dict) else {}
        if not isinstance(name, str) or not TASK_NAME.fullmatch(name):
            raise TaskError(
                f"{where}: a name must consist of letters, digits, '_', '-' and '.', because it is "
                "part of file names; quote it if it looks like a number or a boolean"
            )
        if not isinstance(own, dict) or "name" in keys:
            raise TaskError(f"{where}: {shown(own)} must be a mapping of settings without a 'name'")
        if isinstance(own.get("source"), dict) and isinstance(shared.get("source"), dict):
            keys["source"] = {**shared["source"], **own["source"]}
        tasks[str(name)] = _task(str(name), keys, where, folder or Path())
    return tasks


def _task(name: str, keys: dict[str, Any], where: str, folder: Path) -> Task:
    metric = "accuracy" if keys.get("options") else "exact"
    defaults = {"category": "other/other", "description": "", "metric": metric}
    if (kind := str(keys.get("kind"))) in _HEADED:
        defaults["metric"], given, output = _HEADED[kind]
        if isinstance(source := keys.get("source"), dict) and source.get("format"):
            defaults |= {"input": given, "output": output}
    elif kind == "text":
        shown_text = keys.get("input", "{text}")
        defaults |= {"metric": TEXT_METRIC, "input": shown_text, "output": shown_text, "k": ALL}
    elif kind == "dialogue":
        defaults |= {"metric": "rouge", "input": dialogue.INPUT, "output": dialogue.OUTPUT}
        if isinstance(source := keys.get("source"), dict) and source.get("format") == "faithdial":
            defaults["rows"] = "{label} is faithful"
    elif kind not in _SHOTS:  # the only mistake to report
        defaults |= {"input": "-", "output": "-"}
    keys = {**defaults, **keys, "name": name}
    k = keys.setdefault("k", _SHOTS.get(str(keys.get("kind")), 1))
    if k is None:
        raise TaskError(f"{where}: k: null must be a whole number of at least 1, or '{ALL}'")
    if isinstance(labels := keys.get("labels"), list):
        keys["labels"] = [one.strip() if isinstance(one, str) else one for one in labels]
    if isinstance(source := keys.get("source"), dict):
        keys["source"] = _with_defaults(source, f"{where}: source", folder)
    task = check(Task, keys, where, TaskError)
    text = task.kind == "text"
    rules = {
        f"k: '{ALL}' leaves no line of train for dev; name another file or split with 'dev' in "
        "source, or set k to a number": task.k is None and task.source.dev is None and not text,
        "kind: 'text' has no output and no options; remove them": text
        and (task.output != task.input or bool(task.options)),
        f"options: '{FROM_ROWS}' needs '{CHOICES}' in 'columns', and no head": task.options
        == (FROM_ROWS,)
        and (CHOICES not in task.columns or task.kind in _HEADED),
        f"labels: must not contain a label twice: {', '.join(task.labels)}": len(set(task.labels))
        != len(task.labels),
        f"category: '{task.category}' must have the form 'one/two'": task.category.count("/") != 1,
        f"control: '{task.kind}' has no generated answers; remove it": bool(task.control)
        and (text or task.kind in _HEADED),
        "control: must not contain a metric twice": len(
            {split_metric(one)[0] for one in task.control}
        )
        < len(task.control),
        "'references: distinct' and the filter 'set' in the output require each other; they "
        f"are '{task.references}' and '{task.output}'": (task.references == "distinct")
        is not bool(re.search(r"\|set\b", task.output)),
        "source.test_share: needs 'test', which is missing": task.source.test is None
        and task.source.test_share is not None,
        "source: 'holdout' and 'test' cannot be combined; remove one": task.source.test is not None
        and task.source.holdout is not None,
    }
    with raised_as(TaskError, where, TaskError):
        for mistake, made in rules.items():
            if made:
                raise TaskError(mistake)
        compile_template(task.input, task.labels)
        compile_template(task.output, task.labels)
        if task.rows is not None:
            compile_condition(task.rows, task.labels)
    return task


def _with_defaults(keys: dict[str, Any], where: str, folder: Path) -> dict[str, Any]:
    path, local = keys.get("path"), folder.is_absolute()  # CrossFit's are on the hub
    if local and isinstance(path, str) and path and (folder / path).is_dir():
        keys = _saved(keys, folder / path, where)
    if "path" not in keys:
        if "train" not in keys:
            raise TaskError(f"{where}: needs a data set on the hub (path) or a file (train)")
        keys = keys | {
            side: str(folder / keys[side])
            if keys.get("format")
            else _file(keys[side], f"{where}.{side}", folder)
            for side in ("train", "dev", "test")
            if isinstance(keys.get(side), str)
        }
    held_out = {} if "test" in keys else {"holdout": {}}
    return {"path": None, "train": "train", **held_out, **keys}


def _saved(keys: dict[str, Any], path: Path, where: str) -> dict[str, Any]:
    """Return a source whose path is a folder; a saved data set has a folder for each split."""
    if is_saved(path):
        return {key: value for key, value in keys.items() if key != "path"} | {"train": str(path)}
    splits = sorted(each.name for each in path.iterdir() if is_saved(each))
    if not splits:
        return keys | {"path": str(path)}  # other files, which `datasets` reads
    named = {"train": "train"} | {k: keys[k] for k in ("train", "dev", "test") if keys.get(k)}
    for key, split in named.items():
        if split not in splits:
            raise TaskError(f"{where}.{key}: '{path}' has the splits {', '.join(splits)}")
    keys = {key: value for key, value in keys.items() if key != "path"}
    return keys | {key: str(path / str(split)) for key, split in named.items()}


def _file(name: str, where: str, folder: Path) -> str:
    if not name.endswith(ALL_ENDINGS) and not is_saved(folder / name):
        allowed = ", ".join(ALL_ENDINGS)
        raise TaskError(
            f"{where}: '{name}' must be a file ({allowed}), unless 'path' is set. For published "
            f"dialogues, set 'format' in source: {', '.join(get_args(DialogueFormat))}"
        )
    return str(folder / name)
