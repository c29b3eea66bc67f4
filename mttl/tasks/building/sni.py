"""Super-NaturalInstructions: its English tasks, in the layout of allenai/natural-instructions.

A copy has ``tasks/<task>.json`` and, as published split, ``splits/default/{train,test}_tasks.txt``.
The first 100 instances of a task are test rows, as `splits/README.md` says.

References:
    Wang et al., EMNLP 2022, arXiv:2204.07705. The prompt is that of Tk-Instruct with the definition
    only, as Caccia et al., NeurIPS 2023, arXiv:2211.03831, use it with 100 training rows.
"""

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError
from mttl.io.reading import read_json, read_text, shown
from mttl.tasks.building.collection import CollectedTask, part
from mttl.tasks.task import Source
from mttl.tasks.task_file import TASK_NAME
from mttl.tasks.template import Record

N_ROWS = 100


class _SniTask(CollectedTask):
    def files(self) -> list[Path]:
        return [_file(self.folder, self.name)]

    def records(self, split: str) -> Iterator[Record]:
        """Yield prompts with the outputs that are not blank; skip instances without any."""
        (file,) = self.files()
        instances = _content(file).get("Instances")
        if not isinstance(instances, list):
            raise TaskError(f"{file}: 'Instances' is {shown(instances)}; it must be a list")
        for number, instance in part(list(enumerate(instances, 1)), split):
            match instance:
                case {"input": str(text), "output": [str(), *_] as outputs}:
                    if kept := [one for one in map(str, outputs) if one.strip()]:
                        yield {"input": prompt(self.description, text), "output": kept}
                case _:
                    form = "'input' must be a text, and 'output' a list of texts"
                    raise TaskError(f"{file}: instance {number} is {shown(instance)}; {form}")


def tasks(raw: Path) -> list[CollectedTask]:
    """Return the tasks of the default split; raises a `TaskError` for a wrong file."""
    found: list[CollectedTask] = []
    for side in ("train", "test"):
        file = raw / "splits" / "default" / f"{side}_tasks.txt"
        for name in read_text(file, TaskError).split():
            if not TASK_NAME.fullmatch(name):
                raise TaskError(f"{file}: '{name}' must be the name of a task; correct the line")
            content = _content(_file(raw, name))
            keys: dict[str, Any] = {"input": "{input}", "output": "{output}", "metric": "Rouge-L"}
            keys |= {"k": N_ROWS, "kind": "text-to-text", "references": "all", "side": side}
            keys["category"] = f"sni/{next(iter(content.get('Categories') or ()), 'other')}"
            source = Source(name, train="train", dev="dev", test="test")
            words = content["Definition"][0]
            found.append(_SniTask(name=name, source=source, description=words, folder=raw, **keys))
    return found


def prompt(definition: str, text: str) -> str:
    """Return a prompt of Tk-Instruct: a full stop follows what does not end in punctuation."""
    parts = (f"Definition: {definition.strip()}", f"Input: {text.strip()}")
    head, body = (one if one[-1] in string.punctuation else f"{one}." for one in parts)
    return f"{head}\n\nNow complete the following example -\n{body}\nOutput: "


def _file(raw: Path, name: str) -> Path:
    return raw / "tasks" / f"{name}.json"


def _content(file: Path) -> Any:
    """Return the content of a task's file, whose definition is a list."""
    content = read_json(file, TaskError, dict)
    match content.get("Definition"):
        case str(text) if text.strip():
            content["Definition"] = [text]
        case [str(text), *_] if text.strip():
            pass
        case other:
            raise TaskError(f"{file}: 'Definition' is {shown(other)}; it must be a list of texts")
    return content
