"""Super-NaturalInstructions: its English tasks, in the layout of allenai/natural-instructions.

A copy has ``tasks/<task>.json`` and, as published split, ``splits/default/{train,test}_tasks.txt``.
The first 100 instances of a task are test rows, as `splits/README.md` says.

References:
    Wang et al., EMNLP 2022, arXiv:2204.07705. The prompt is that of Tk-Instruct with the definition
    only, as Caccia et al., NeurIPS 2023, arXiv:2211.03831, use it with 100 training rows.
"""

import string
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mttl.io.errors import TaskError, raised_as
from mttl.io.reading import read_json, read_text
from mttl.tasks.building.collection import CollectedTask, part, text_task
from mttl.tasks.task import Source
from mttl.tasks.task_file import TASK_NAME
from mttl.tasks.template import Record

N_ROWS = 100


def tasks(raw: Path) -> list[CollectedTask]:
    """Return the tasks of the default split; raises a `TaskError` for a wrong file."""
    found = list[CollectedTask]()
    for side in ("train", "test"):
        splits = raw / "splits" / "default" / f"{side}_tasks.txt"
        for name in read_text(splits, TaskError).split():
            if not TASK_NAME.fullmatch(name):
                raise TaskError(f"{splits}: '{name}' must be the name of a task; correct the line")
            file = raw / "tasks" / f"{name}.json"
            content = read_json(file, TaskError, dict)
            with raised_as(TaskError, f"{file} is not a task", LookupError, text=repr):
                category, words = content["Categories"][0], content["Definition"]
                words = words if isinstance(words, str) else words[0]
            source = Source(name, train="train", dev="dev", test="test")
            keys = {"category": f"sni/{category}", "description": words, "references": "all"}
            read = partial(_records, file, words)
            keys |= {"source": source, "k": N_ROWS, "side": side, "files": (file,), "read": read}
            found.append(text_task(name=name, **keys))
    if not found:
        raise TaskError(f"{raw / 'splits' / 'default'}: the files of the split name no task")
    return found


def _records(file: Path, definition: str, split: str) -> Iterator[Record]:
    """Yield prompts with the outputs that are not blank; skip instances without any."""
    instances = read_json(file, TaskError, dict)["Instances"]
    for number, instance in part(list(enumerate(instances, 1)), split):
        match instance:
            case {"input": str(text), "output": [*outputs]}:
                if kept := [one for one in outputs if one.strip()]:
                    yield {"input": prompt(definition, text), "output": kept}
            case _:
                raise TaskError(f"{file}: instance {number} needs an 'input' and a list 'output'")


def prompt(definition: str, text: str) -> str:
    """Return a prompt of Tk-Instruct: a full stop follows what does not end in punctuation."""
    parts = (f"Definition: {definition.strip()}", f"Input: {text.strip()}")
    head, body = (one if one[-1] in string.punctuation else f"{one}." for one in parts)
    return f"{head}\n\nNow complete the following example -\n{body}\nOutput: "
