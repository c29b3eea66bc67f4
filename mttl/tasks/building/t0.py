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
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from heapq import nsmallest
from importlib.resources import files
from itertools import chain, zip_longest
from pathlib import Path
from statistics import multimode
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mttl.io import yaml12
from mttl.io.errors import TaskError, raised_as
from mttl.io.reading import read_text, reason
from mttl.tasks.building.collection import MOST_HELD_OUT, CollectedTask, part, text_task
from mttl.tasks.building.hub import UnavailableError, raw_file
from mttl.tasks.rows import read_records
from mttl.tasks.task import CHOICES, FROM_ROWS, Source
from mttl.tasks.template import Record

N_ROWS = 1000
_SEED = 42
_END = " | string | truncate(2048) }}"  # variables are cut as in P3
# A separator in data is replaced as in promptsource, since the templates of multi_news name that.
_SEPARATOR, _PROTECTED = "|||", "3ed2dface8203c4c9dfb1a5dc58e41e0"

_PARTS = {"train": "train", "dev": "dev", "test": "test"}
_Template = tuple[str, str | None, bool | None]  # Jinja, that of choices, of the original task
_Templates = Mapping[str, _Template]
_PUBLISHED = "{{inputs_pretokenized}} ||| {{targets_pretokenized}}"  # of the rows of P3
_PUBLISHED_CHOICES = "{{answer_choices | join('|||')}}"


def tasks(raw: Path) -> list[CollectedTask]:
    """Return the tasks whose templates exist; raises a `TaskError` if there are none."""
    table = yaml12.parse(files("mttl.tasks.building").joinpath("t0.yaml").read_text("utf-8"))
    found = list[CollectedTask]()
    for category, names in table["train"].items():
        for data in names:
            for name, one in _templates(raw, data).items():
                if name not in table["omitted"]:
                    keys = {"k": N_ROWS, "side": "train", "splits": _PARTS}
                    found.append(_task(name, raw, {name: one}, data, category, **keys))
    for name, own in table["test"].items():
        given = _templates(raw, own.setdefault("data", name))
        if originals := {key: one for key, one in given.items() if one[1] and one[2]}:
            found.append(_task(name.replace("/", "_"), raw, originals, **own))
    if not found:
        advice = "copy that folder of github.com/bigscience-workshop/promptsource there"
        raise TaskError(f"'{raw}' has no 'templates' with a data set of T0; {advice}")
    return found


def _task(
    name: str, raw: Path, templates: _Templates, data: str, category: str, **own: Any
) -> CollectedTask:
    path, _, config = data.partition("/")
    splits = {"train": "train", "test": "validation"} | own.pop("splits", {})
    source = Source(path, config=config or None, **splits)
    folders = f"templates/{data}", f"{path}__{config or 'default'}", *(f"{x}*" for x in templates)
    found = tuple(file for folder in folders for file in sorted(raw.glob(f"{folder}/*")))
    keys = {"k": 32, "side": "test", "source": source, "files": found} | own
    if all(choices for _, choices, _ in templates.values()):
        keys |= {"metric": "accuracy", "options": (FROM_ROWS,), "columns": (CHOICES,)}
    read = partial(_records, raw, source, templates, keys["side"])
    return text_task(name=name, category=f"t0/{category}", read=read, **keys)


def _templates(raw: Path, data: str) -> dict[str, _Template]:
    """Return the templates of a data set by their names in P3; none without the file."""
    file, found = raw / "templates" / data / "templates.yaml", dict[str, _Template]()
    if file.is_file():
        text = re.sub(r"(?m)(?<=:) !Template(Metadata)?$", "", read_text(file, TaskError))
        tree = yaml12.parse_at(str(file), text, TaskError)
        with raised_as(TaskError, f"{file} is not promptsource's", LookupError, text=repr):
            for one in tree["templates"].values():
                name = re.sub(r"[^\w.]+", "_", f"{data.replace('/', '_')}_{one['name']}")
                found[name] = one["jinja"], one["answer_choices"], one["metadata"]["original_task"]
    return found


def _records(
    raw: Path, source: Source, templates: _Templates, side: str, split: str
) -> Iterable[Record]:
    """Return prompts with answers and choices, without those that templates leave empty."""
    drawn = side == "train"
    read = "train" if drawn else split
    each = [_rows(raw, source, read, name, one) for name, one in templates.items()]
    places: Iterable[Any] = enumerate(zip_longest(*each))
    if drawn:
        draws = random.Random(_SEED)
        places = nsmallest(N_ROWS + 2 * MOST_HELD_OUT, places, key=lambda _: draws.random())
    turns = (applied[n % len(each) :] + applied[: n % len(each)] for n, applied in places)
    rows = (next(filter(None, (apply() for apply in turn if apply)), None) for turn in turns)
    found = filter(None, rows)
    return part(list(found), split) if drawn else found


def _rows(
    raw: Path, source: Source, split: str, name: str, template: _Template
) -> Iterator[Callable[[], Record | None]]:
    """Yield a function for each record, which returns the row of a template, if there is one."""
    jinja, choices, _ = template
    side, mark, turn = split.partition("_")  # the rounds of ANLI are tasks of P3
    folder = raw / f"{name}{mark}{turn}"
    if found := sorted(folder.glob(f"{side}[-.]*")):
        jinja, choices = _PUBLISHED, choices and _PUBLISHED_CHOICES
    else:
        with raised_as(UnavailableError, f"'{folder}' has no rows of {side}", UnavailableError):
            found = [raw_file(source, split, raw)]
        jinja = jinja.replace("}}", _END)
    environment = SandboxedEnvironment(undefined=StrictUndefined)  # templates run no code
    environment.globals["zip"] = zip
    environment.filters |= {"choice": random.Random(_SEED).choice, "most_frequent": multimode}
    with raised_as(TaskError, f"template '{name}'", TemplateError, text=reason):
        body, listed = environment.from_string(jinja), environment.from_string(choices or "")

    def apply(number: int, record: Record) -> Record | None:
        values = {key.replace("-", "_"): value for key, value in record.items()}
        texts = ((key, value) for key, value in values.items() if isinstance(value, str))
        values |= {key: text.replace(_SEPARATOR, _PROTECTED) for key, text in texts}
        place = f"template '{name}' does not fit {found[0].parent}, row {number} of {split}"
        with raised_as(TaskError, place, Exception, text=reason):
            own = _split(listed.render(values)) if choices else None
            text, *rest = _split(body.render(values | {"answer_choices": own}))
        if text and len(rest) == 1 and rest[0] and (own is None or len({*own}) > 1):
            return {"input": text, "output": rest[0], CHOICES: own and list(dict.fromkeys(own))}
        return None

    records = chain.from_iterable(map(read_records, found))
    return (partial(apply, number, record) for number, record in enumerate(records, 1))


def _split(text: str) -> list[str]:
    return [one.replace(_PROTECTED, _SEPARATOR).strip() for one in text.split(_SEPARATOR)]
