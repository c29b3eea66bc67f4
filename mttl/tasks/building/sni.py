"""Super-NaturalInstructions: its English tasks, in the layout of allenai/natural-instructions.

A copy has ``tasks/<task>.json`` and, as published split, ``splits/default/{train,test}_tasks.txt``.
The first 100 instances of a task are test rows, as `splits/README.md` says.

References:
    Wang et al., EMNLP 2022, arXiv:2204.07705. The prompt is that of Tk-Instruct, with the
    definition only, as Caccia et al., NeurIPS 2023, arXiv:2211.03831, train on 100 instances.
"""

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.reading import read_json, read_text, shown
from mttl.tasks.building.collection import part
from mttl.tasks.task import Side, Source, Task
from mttl.tasks.task_file import TASK_NAME
from mttl.tasks.template import Record

N_ROWS = 100


def tasks(raw: Path) -> list[Task]:
    """Return the tasks of the default split; raises a `TaskError` for a wrong file."""
    return [*_side("train", raw), *_side("test", raw)]


def files(task: Task, raw: Path) -> list[Path]:
    """Return the file of a task."""
    return [raw / "tasks" / f"{task.name}.json"]


def records(task: Task, split: str, raw: Path) -> Iterator[Record]:
    """Yield prompts with all outputs that are not blank; instances without any are skipped."""
    (file,) = files(task, raw)
    content = read_json(file, TaskError, dict)
    definition, instances = _definition(content, file), content.get("Instances")
    if not isinstance(instances, list):
        raise TaskError(f"{file}: 'Instances' is {shown(instances)}; it must be a list")
    for number, instance in part(list(enumerate(instances, 1)), split):
        match instance:
            case {"input": str(text), "output": [str(), *_] as outputs}:
                if kept := [one for one in map(str, outputs) if one.strip()]:
                    yield {"input": prompt(definition, text), "output": kept}
            case _:
                form = "'input' must be a text, and 'output' a list of texts"
                raise TaskError(f"{file}: instance {number} is {shown(instance)}; {form}")


def prompt(definition: str, text: str) -> str:
    """Return a prompt of Tk-Instruct: a full stop follows what does not end in punctuation."""
    parts = (f"Definition: {definition.strip()}", f"Input: {text.strip()}")
    head, body = (one if one[-1] in string.punctuation else f"{one}." for one in parts)
    return f"{head}\n\nNow complete the following example -\n{body}\nOutput: "


def _side(side: Side, raw: Path) -> Iterator[Task]:
    file = raw / "splits" / "default" / f"{side}_tasks.txt"
    for name in read_text(file, TaskError).split():
        if not TASK_NAME.fullmatch(name):
            raise TaskError(f"{file}: '{name}' must be the name of a task; correct the line")
        path = raw / "tasks" / f"{name}.json"
        content: Any = read_json(path, TaskError, dict)
        categories = content.get("Categories")
        yield Task(
            name=name,
            source=Source(name, train="train", dev="dev", test="test"),
            k=N_ROWS,
            kind="text-to-text",
            input="{input}",
            output="{output}",
            references="all",
            metric="Rouge-L",
            category=f"sni/{categories[0] if categories else 'other'}",
            description=_definition(content, path),
            side=side,
        )


def _definition(content: Any, file: Path) -> str:
    match content.get("Definition"):
        case [str(text), *_] | str(text) if text.strip():
            return text
        case other:
            raise TaskError(f"{file}: 'Definition' is {shown(other)}; it must be a list of texts")
