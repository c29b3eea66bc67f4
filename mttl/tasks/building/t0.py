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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files as package_files
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.filters import do_truncate
from jinja2.sandbox import SandboxedEnvironment

from mttl.io import yaml12
from mttl.io.errors import TaskError
from mttl.io.reading import read_text, reason, shown
from mttl.tasks.building.collection import MOST_HELD_OUT, part
from mttl.tasks.building.hub import UnavailableError, raw_file
from mttl.tasks.rows import RECORD_ENDINGS, read_records
from mttl.tasks.task import CHOICES, FROM_ROWS, Source, Task
from mttl.tasks.template import Record

N_ROWS = 1000
_SEED = 42
_LONGEST = 2048  # characters of a variable, as in P3
_SEPARATOR, _PROTECTED = "|||", "\x00bars\x00"
_ROUND = re.compile("_(r[123])$")  # of ANLI, in the names of its splits
# What a template may raise for a record.
_FAILURES = (TemplateError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


@dataclass(frozen=True)
class _Template:
    """A template of promptsource; ``task`` is its name in P3."""

    task: str
    jinja: str
    choices: str | None
    original: bool
    place: str

    def folder(self, split: str, raw: Path) -> Path:
        """Return the folder of P3's rows."""
        return raw / "_".join([self.task, *_ROUND.findall(split)])


def tasks(raw: Path) -> list[Task]:
    """Return the tasks whose templates exist; raises a `TaskError` if there are none."""
    text = package_files("mttl.tasks.building").joinpath("t0.yaml").read_text("utf-8")
    table, found = yaml12.parse_at("t0.yaml", text, TaskError), list[Task]()
    for category, names in table["train"].items():
        for name in names:
            source = _source(name, train="train", dev="dev", test="test")
            for one in _templates(source, raw):
                if one.task not in table["omitted"]:
                    own = {"side": "train", "k": N_ROWS, "category": f"t0/{category}"}
                    found.append(_task(one.task, source, [one], **own))
    for name, own in table["test"].items():
        sides = {"train": own.get("train", "train"), "test": own.get("test", "validation")}
        source = _source(own.get("data", name), **sides)
        if originals := _originals(source, raw):
            more = {"side": "test", "k": own.get("k", 32), "category": f"t0/{own['category']}"}
            found.append(_task(name.replace("/", "_"), source, originals, **more))
    if not found:
        advice = "copy that folder of github.com/bigscience-workshop/promptsource there"
        raise TaskError(f"'{raw}' has no 'templates' with a data set of T0; {advice}")
    return found


def files(task: Task, raw: Path) -> list[Path]:
    """Return the templates and all files of the rows of a task."""
    source = task.source
    folders = [one.folder(source.train, raw) for one in _own_templates(task, raw)]
    folders.append(raw / f"{source.path}__{source.config or 'default'}")
    found = (file for one in folders if one.is_dir() for file in sorted(one.iterdir()))
    return [_template_file(source, raw), *found]


def records(task: Task, split: str, raw: Path) -> Iterator[Record]:
    """Yield prompts with the answer and its choices; what a template leaves empty is skipped."""
    if task.side == "test":
        return _rows(task, split, raw, iter)
    return iter(part(list(_rows(task, "train", raw, _drawn)), split))


def _rows(
    task: Task, split: str, raw: Path, choose: Callable[[Iterator[Any]], Iterable[Any]]
) -> Iterator[Record]:
    templates = _own_templates(task, raw)
    folders = [one.folder(split, raw) for one in templates]
    if published := [one for one in folders if one.is_dir()]:
        for place, folder in enumerate(published):  # all have the rows of the data set
            rows = islice(_published(folder, _ROUND.sub("", split)), place, None, len(published))
            for where, record in choose(rows):
                match record:
                    case {"inputs_pretokenized": str(text), "targets_pretokenized": str(answer)}:
                        yield from _row(text, answer, record.get("answer_choices"))
                    case _:
                        form = "texts as 'inputs_pretokenized' and 'targets_pretokenized'"
                        raise TaskError(f"{where}: {shown(record)} must have {form}")
        return
    try:
        file = raw_file(task.source, split, raw)
    except UnavailableError as error:
        raise UnavailableError(f"{error} and no folder '{folders[0].name}' of P3") from error
    environment = _environment()
    applied = [_compiled(one, environment) for one in templates]
    for number, record in choose(enumerate(read_records(file), 1)):
        start = number % len(applied)
        for apply in (*applied[start:], *applied[:start]):
            if found := apply(record, f"{file}, row {number}"):
                yield from found
                break


def _published(folder: Path, split: str) -> Iterator[tuple[str, Record]]:
    """Yield the rows of a split of a task of P3, each with its place."""
    found = sorted(
        file for file in folder.glob(f"{split}[-.]*") if file.name.endswith(RECORD_ENDINGS)
    )
    if not found:
        raise UnavailableError(f"'{folder}' has no file {split}*.parquet or {split}*.jsonl[.gz]")
    for file in found:
        yield from ((f"{file}, row {n}", row) for n, row in enumerate(read_records(file), 1))


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
    """Return a row, or none if a text is blank or there is no choice."""
    row: dict[str, Any] = {"input": text, "output": answer}
    if choices is not None:
        row[CHOICES] = list(dict.fromkeys(choices))
    whole = text.strip() and answer.strip() and len(row.get(CHOICES, (1, 2))) > 1
    return [row] if whole else []


def _environment() -> SandboxedEnvironment:
    """Return promptsource's dialect of Jinja, which runs no code; `choice` is drawn with a seed."""
    environment = SandboxedEnvironment(undefined=StrictUndefined)
    environment.globals["zip"] = zip
    environment.filters["choice"] = random.Random(_SEED).choice
    environment.filters["most_frequent"] = _most_frequent
    return environment


def _most_frequent(items: Iterable[Any]) -> list[Any]:
    counts = Counter(items)
    return [item for item, count in counts.items() if count == max(counts.values())]


def _compiled(
    template: _Template, environment: SandboxedEnvironment
) -> Callable[[Record, str], list[Record]]:
    """Return a function from a record and its place to a row, or none."""
    limited = environment.overlay(
        finalize=lambda value: do_truncate(environment, str(value), _LONGEST)
    )
    try:
        body = limited.from_string(template.jinja)
        listed = environment.from_string(template.choices or "")
    except TemplateError as error:
        raise TaskError(f"{template.place} is not a template of Jinja: {reason(error)}") from error

    def apply(record: Record, place: str) -> list[Record]:
        values = {
            key.replace("-", "_"): value.replace(_SEPARATOR, _PROTECTED)
            if isinstance(value, str)
            else value
            for key, value in record.items()
        }
        try:
            choices = None if template.choices is None else _split(listed.render(values))
            parts = _split(body.render(values | {"answer_choices": choices}))
        except _FAILURES as error:
            raise TaskError(f"{template.place} does not fit {place}: {reason(error)}") from error
        return _row(*parts, choices) if len(parts) == 2 else []

    return apply


def _split(text: str) -> list[str]:
    return [one.replace(_PROTECTED, _SEPARATOR).strip() for one in text.split(_SEPARATOR)]


def _source(name: str, **splits: str) -> Source:
    path, _, config = name.partition("/")
    return Source(path, config=config or None, **splits)


def _task(name: str, source: Source, templates: list[_Template], **more: Any) -> Task:
    ranked = all(one.choices is not None for one in templates)
    return Task(
        name=name,
        source=source,
        kind="text-to-text",
        input="{input}",
        output="{output}",
        metric="accuracy" if ranked else "Rouge-L",
        options=(FROM_ROWS,) if ranked else (),
        columns=(CHOICES,) if ranked else (),
        description="",
        **more,
    )


def _own_templates(task: Task, raw: Path) -> list[_Template]:
    if task.side == "test":
        return _originals(task.source, raw)
    return [one for one in _templates(task.source, raw) if one.task == task.name]


def _originals(source: Source, raw: Path) -> list[_Template]:
    """Return the templates with choices of the data set's own task."""
    return [one for one in _templates(source, raw) if one.original and one.choices is not None]


def _template_file(source: Source, raw: Path) -> Path:
    return raw.joinpath("templates", *filter(None, (source.path, source.config)), "templates.yaml")


def _templates(source: Source, raw: Path) -> list[_Template]:
    """Return the templates of a data set by name; none without the file."""
    file = _template_file(source, raw)
    if not file.is_file():
        return []
    text = re.sub(r"(?m)(?<=:) !Template(Metadata)?$", "", read_text(file, TaskError))
    tree, found = yaml12.parse_at(str(file), text, TaskError), list[_Template]()
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
                words = "_".join(filter(None, (source.path, source.config, name)))
                task, place = re.sub(r"[^\w.]+", "_", words), f"{file}, template '{name}'"
                found.append(_Template(task, jinja, choices, bool(original), place))
            case _:
                form = "name, jinja, answer_choices and metadata.original_task"
                raise TaskError(f"{file}: the template {shown(one)} must have {form}")
    return sorted(found, key=lambda one: one.task)
