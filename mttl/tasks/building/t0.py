"""T0's tasks, from promptsource's templates and P3's rows or the data sets themselves.

A copy has promptsource's ``templates/<data set>[/<subset>]/templates.yaml``. Rows of a template are
P3's, ``<task>/<split>*.parquet`` or ``.jsonl[.gz]``, or else it is applied to the data set,
``<data set>__<subset, or default>/<split>.jsonl[.gz]``. `t0.yaml` lists the data sets.

Each template for training is a task, of which 1,200 rows are drawn: 100 test, 100 dev, 1,000 train.
A held-out task uses all its templates of the original task, in turn.

References:
    Sanh et al., ICLR 2022, arXiv:2110.08207; Bach et al., ACL 2022, arXiv:2202.01279; the tasks are
    those of Caccia et al., NeurIPS 2023, arXiv:2211.03831.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from itertools import islice
from pathlib import Path
from statistics import multimode
from typing import Any, NamedTuple

from jinja2 import StrictUndefined, TemplateError
from jinja2.filters import do_truncate
from jinja2.sandbox import SandboxedEnvironment
from pydantic.dataclasses import dataclass

from mttl.io import yaml12
from mttl.io.errors import TaskError, raised_as
from mttl.io.reading import read_text, reason, shown
from mttl.io.record import STRICT
from mttl.tasks.building.collection import MOST_HELD_OUT, CollectedTask, part
from mttl.tasks.building.hub import UnavailableError, raw_file
from mttl.tasks.rows import RECORD_ENDINGS, read_records
from mttl.tasks.task import CHOICES, FROM_ROWS, Source
from mttl.tasks.template import Record

N_ROWS = 1000
_SEED = 42
_LONGEST = 2048  # characters of a variable, as in P3
# A separator in data is replaced as in promptsource, since the templates of multi_news name that.
_SEPARATOR, _PROTECTED = "|||", "3ed2dface8203c4c9dfb1a5dc58e41e0"
_ROUND = re.compile("_(r[123])$")  # of ANLI, in the names of its splits
# What a template may raise for a record.
_FAILURES = (TemplateError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)

_Choose = Callable[[Iterator[Any]], Iterable[Any]]


class _Template(NamedTuple):
    """A template of promptsource; ``task`` is its name in P3."""

    task: str
    jinja: str
    choices: str | None
    original: bool | None
    place: str


@dataclass(frozen=True, config=STRICT)
class _T0Task(CollectedTask):
    templates: tuple[_Template, ...] = ()

    def files(self) -> list[Path]:
        folder = self.folder / f"{self.source.path}__{self.source.config or 'default'}"
        folders = [*self._published(self.source.train), *([folder] if folder.is_dir() else [])]
        return [file for one in folders for file in sorted(one.iterdir())]

    def records(self, split: str) -> Iterator[Record]:
        """Yield prompts with answers and choices; skip what a template leaves empty."""
        if self.side == "test":
            return self._rows(split, iter)
        return iter(part(list(self._rows("train", _drawn)), split))

    def _published(self, split: str) -> list[Path]:
        """Return the existing folders of P3."""
        names = ("_".join([one.task, *_ROUND.findall(split)]) for one in self.templates)
        return [self.folder / name for name in names if (self.folder / name).is_dir()]

    def _rows(self, split: str, choose: _Choose) -> Iterator[Record]:
        published = self._published(split)
        for place, folder in enumerate(published):  # all have the rows of the data set
            rows = _p3_rows(folder, _ROUND.sub("", split))
            for record in choose(islice(rows, place, None, len(published))):
                match record:
                    case {"inputs_pretokenized": str(text), "targets_pretokenized": str(answer)}:
                        yield from _row(text, answer, record.get("answer_choices"))
                    case _:
                        form = "texts as 'inputs_pretokenized' and 'targets_pretokenized'"
                        raise TaskError(f"'{folder}': the row {shown(record)} must have {form}")
        if published:
            return
        file = raw_file(self.source, split, self.folder)
        environment = SandboxedEnvironment(undefined=StrictUndefined)  # templates run no code
        environment.globals["zip"] = zip
        environment.filters |= {"choice": random.Random(_SEED).choice, "most_frequent": multimode}
        applied = [_applied(one, environment, file) for one in self.templates]
        for number, record in choose(enumerate(read_records(file), 1)):
            start = number % len(applied)
            turns = (apply(record, number) for apply in (*applied[start:], *applied[:start]))
            yield from next(filter(None, turns), ())


def tasks(raw: Path) -> list[CollectedTask]:
    """Return the tasks whose templates exist; raises a `TaskError` if there are none."""
    text = files("mttl.tasks.building").joinpath("t0.yaml").read_text("utf-8")
    table, found = yaml12.parse_at("t0.yaml", text, TaskError), list[CollectedTask]()
    train: Any = {"k": N_ROWS, "side": "train", "dev": "dev", "test": "test"}
    for category, names in table["train"].items():
        for data in names:
            for one in _templates(data, raw):
                if one.task not in table["omitted"]:
                    found.append(_task(one.task, raw, data, [one], category=category, **train))
    for name, own in table["test"].items():
        data = own.pop("data", name)
        originals = [one for one in _templates(data, raw) if one.original and one.choices]
        if originals:
            found.append(_task(name.replace("/", "_"), raw, data, originals, **own))
    if not found:
        advice = "copy that folder of github.com/bigscience-workshop/promptsource there"
        raise TaskError(f"'{raw}' has no 'templates' with a data set of T0; {advice}")
    return found


def _task(
    name: str,
    raw: Path,
    data: str,
    templates: list[_Template],
    *,
    category: str,
    k: int = 32,
    side: str = "test",
    **splits: Any,
) -> _T0Task:
    path, _, config = data.partition("/")
    splits = {"train": "train", "test": "validation"} | splits
    keys: dict[str, Any] = {"source": Source(path, config=config or None, **splits), "side": side}
    keys |= {"kind": "text-to-text", "input": "{input}", "output": "{output}", "description": ""}
    keys |= {"metric": "Rouge-L", "category": f"t0/{category}", "templates": tuple(templates)}
    if all(one.choices for one in templates):
        keys |= {"metric": "accuracy", "options": (FROM_ROWS,), "columns": (CHOICES,)}
    return _T0Task(name=name, k=k, folder=raw, **keys)


def _templates(data: str, raw: Path) -> list[_Template]:
    """Return the templates of a data set by name; none without the file."""
    file, found = raw / "templates" / data / "templates.yaml", list[_Template]()
    if not file.is_file():
        return []
    text = re.sub(r"(?m)(?<=:) !Template(Metadata)?$", "", read_text(file, TaskError))
    tree = yaml12.parse_at(str(file), text, TaskError)
    if not isinstance(tree, dict) or not isinstance(tree.get("templates"), dict):
        raise TaskError(f"{file}: the key 'templates' with templates by number is missing")
    for one in tree["templates"].values():
        match one:
            case {
                "name": str(name),
                "jinja": str(jinja),
                "answer_choices": str() | None as choices,
                "metadata": {"original_task": bool() | None as original},
            }:
                task = re.sub(r"[^\w.]+", "_", f"{data.replace('/', '_')}_{name}")
                found.append(_Template(task, jinja, choices, original, f"{file}, '{name}'"))
            case _:
                form = "name, jinja, answer_choices and metadata.original_task"
                raise TaskError(f"{file}: the template {shown(one)} must have {form}")
    return sorted(found)


def _p3_rows(folder: Path, split: str) -> Iterator[Record]:
    found = [file for file in folder.glob(f"{split}[-.]*") if file.name.endswith(RECORD_ENDINGS)]
    if not found:
        raise UnavailableError(f"'{folder}' has no file {split}*.parquet or {split}*.jsonl[.gz]")
    for file in sorted(found):
        yield from read_records(file)


def _drawn(rows: Iterator[Any]) -> list[Any]:
    """Return a uniform sample of rows, which are read once (reservoir sampling)."""
    draws, n, kept = random.Random(_SEED), N_ROWS + 2 * MOST_HELD_OUT, []
    for number, row in enumerate(rows):
        if number < n:
            kept.append(row)
        elif (place := draws.randrange(number + 1)) < n:
            kept[place] = row
    return kept


def _row(text: str, answer: str, choices: Iterable[str] | None) -> list[Record]:
    """Return a row, or none if a text is blank or there is a single choice."""
    own = None if choices is None else list(dict.fromkeys(choices))
    if not text.strip() or not answer.strip() or (own is not None and len(own) < 2):
        return []
    return [{"input": text, "output": answer} | ({CHOICES: own} if own else {})]


def _applied(
    template: _Template, environment: SandboxedEnvironment, file: Path
) -> Callable[[Record, int], list[Record]]:
    """Return a function from a record and its number to a row, or none."""
    limited = environment.overlay(
        finalize=lambda value: do_truncate(environment, str(value), _LONGEST)
    )
    with raised_as(TaskError, template.place, TemplateError, text=reason):
        body = limited.from_string(template.jinja)
        listed = environment.from_string(template.choices or "")

    def apply(record: Record, number: int) -> list[Record]:
        values = {key.replace("-", "_"): _protected(value) for key, value in record.items()}
        place = f"{template.place} does not fit {file}, row {number}"
        with raised_as(TaskError, place, *_FAILURES, text=reason):
            choices = _split(listed.render(values)) if template.choices else None
            text, *rest = _split(body.render(values | {"answer_choices": choices}))
        return _row(text, rest[0], choices) if len(rest) == 1 else []

    return apply


def _protected(value: Any) -> Any:
    return value.replace(_SEPARATOR, _PROTECTED) if isinstance(value, str) else value


def _split(text: str) -> list[str]:
    return [one.replace(_PROTECTED, _SEPARATOR).strip() for one in text.split(_SEPARATOR)]
