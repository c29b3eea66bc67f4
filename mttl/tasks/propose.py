"""Propose a task file for a folder of data.

Each file is a task, or a split of one if a word such as ``train`` ends its name or that of its
folder. Columns are recognised by their names, otherwise by their values. Every proposal is checked
by converting all records; a file that cannot be read is reported, and the others are proposed.
"""

import json
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mttl.io.errors import TaskError
from mttl.tasks.filters import shown, squeeze
from mttl.tasks.rows import DELIMITERS, RECORD_ENDINGS, is_saved, read_records
from mttl.tasks.sample_files import write_samples
from mttl.tasks.task import FROM_TRAIN, published_sums
from mttl.tasks.task_file import parse_tasks

_log = logging.getLogger(__name__)

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation", "eval"), "dev"),
    "test": "test",
}
_SPLIT = re.compile(rf"(?i)(?:(.*)[._-])?({'|'.join(_SPLITS)})(?:-0+-of-0*1)?")
# Common names of columns, the most telling first.
_OUTPUTS = (
    *("label", "labels", "intent", "sentiment", "class", "category", "target", "targets"),
    *("answer", "answers", "output", "outputs", "response", "completion", "summary"),
    *("translation", "topic", "reply", "replies", "score", "rating"),
)
_INPUTS = (
    *("text", "texts", "input", "inputs", "instruction", "question", "query", "context"),
    *("passage", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "message"),
    *("prompt", "document", "article", "body", "content", "review", "comment", "tweet"),
    *("utterance", "source"),
)
_MOST_VALUES, _MOST_LABELS, _LONGEST_LABEL, _ROWS_EACH = 10_000, 1000, 100, 4
_LISTED = 20  # more labels are not listed
_DIALOGUE = ("history", "knowledge", "response")


@dataclass
class _Column:
    n_empty: int = 0
    n_rows: int = 0
    n_characters: int = 0
    n_words: int = 0
    longest: int = 0
    kinds: set[type] = field(default_factory=set)
    values: Counter[Any] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)

    def add(self, value: Any) -> None:
        if value is None or (isinstance(value, str) and not value.strip()):
            self.n_empty += 1
            return
        self.n_rows += 1
        self.kinds.add(type(value))
        if isinstance(value, list):
            self.kinds |= {list if isinstance(item, str) else dict for item in value}
            return
        text = value.strip() if isinstance(value, str) else str(value)
        self.n_characters += len(text)
        self.n_words += len(text.split())
        self.longest = max(self.longest, len(text))
        if len(self.values) <= _MOST_VALUES:
            self.values[value if isinstance(value, bool) else text] += 1

    @property
    def is_text(self) -> bool:
        return bool(self.kinds) and self.kinds <= {str, int, float}

    @property
    def is_prose(self) -> bool:
        """True for texts of four words and more on average, unlike names and numbers."""
        return self.kinds == {str} and self.n_words >= 4 * self.n_rows

    @property
    def is_class(self) -> bool:
        n = len(self.values)
        few = n <= _MOST_LABELS and _ROWS_EACH * n <= self.n_rows
        return n > 1 and few and self.longest <= _LONGEST_LABEL


def propose(folder: str | Path) -> str:
    """Return the text of a task file for the data in a folder; paths are as ``folder`` is given.

    Raises:
        TaskError: If there are no data, or no task can be proposed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TaskError(f"'{folder}' is not a folder; name the folder of the data")
    found = _sources(folder)
    if not found:
        raise TaskError(
            f"'{folder}' has no data: files must end in one of {', '.join(RECORD_ENDINGS)}, or be "
            "folders of `save_to_disk`"
        )
    tasks, problems = [], []
    for name, files in found.items():
        try:
            tasks.append(_task(name, files))
        except TaskError as error:
            problems.append(f"{name}: {squeeze(str(error))}")
    if not tasks:
        raise TaskError("\n".join(["no task can be proposed:", *problems]))
    for problem in problems:
        _log.warning("no task for %s", problem)
    return "tasks:\n" + "\n".join([*tasks, *(f"  # {problem}\n" for problem in problems)])


def _sources(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the file of each split, by task."""
    tasks: dict[str, dict[str, Path]] = {}
    for path in _data_in(folder):
        stem = path.name
        for ending in sorted(RECORD_ENDINGS, key=len, reverse=True):
            stem = stem.removesuffix(ending) if not is_saved(path) else stem
        words = [*path.relative_to(folder).parent.parts, stem]
        split = ""
        for place in (-1, -2)[: len(words)]:
            if match := _SPLIT.fullmatch(words[place]):
                split = _SPLITS[match[2].lower()]
                words[place] = match[1] or ""
                break
        words = [word for word in words if word] or [folder.resolve().name]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(words)).strip("_.-") or "task"
        name = f"my-{name}" if name in published_sums() else name
        splits = tasks.setdefault(name, {})
        if (split or "train") in splits:
            both = f"'{splits[split or 'train']}' and '{path}'"
            raise TaskError(f"{both} are both {split or 'train'} of '{name}'; join or rename them")
        splits[split or "train"] = path
    return dict(sorted(tasks.items()))


def _data_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not is_saved(path):
            yield from _data_in(path)
        elif path.is_dir() or path.name.endswith(RECORD_ENDINGS):
            yield path


def _task(name: str, files: Mapping[str, Path]) -> str:
    """Return the lines of a task; raises a `TaskError` if there is none."""
    if "train" not in files:
        raise TaskError(f"no training file, only {', '.join(map(str, files.values()))}")
    delimiter = _delimiter(files["train"])
    columns, n_rows = _columns(files["train"], delimiter)
    source = {key: str(files[key]) for key in ("train", "dev", "test") if key in files}
    parted = "" if "test" in files else "20 % of the rows are test"
    keys: dict[str, tuple[Any, str]]
    if delimiter is None and {*_DIALOGUE} <= columns.keys():
        response = columns["response"]
        size = _size(_Column(response.n_empty), n_rows, files)
        kind = "dialogue", _lengths([response])
        keys = {"kind": kind, "source": (source, parted), "k": size}
        if response.n_empty:
            keys["rows"] = "{response} is not empty", f"{response.n_empty:,} rows are left out"
        return _printed(name, keys, columns, (*_DIALOGUE, "label"), n_rows)
    usable = {key: one for key, one in columns.items() if not re.search(r"[{}|]|^\[", key)}
    output = _output(usable)
    inputs = [] if output is None else _inputs(usable, output)
    if output is None or not inputs:
        raise TaskError(f"no columns for input and output among: {', '.join(columns) or 'none'}")
    answer = usable[output]
    if delimiter is not None:
        source["delimiter"] = delimiter
    used = {key: usable[key] for key in (*inputs, output)}
    named = f"{{{output}|name}}" if answer.names else f"{{{output}}}"
    text = f"{{{inputs[0]}}}"
    if len(inputs) > 1:
        text = " ".join(f"{key}: {{{key}}}" for key in inputs)
    conditions = [f"{{{key}}} is not empty" for key, one in used.items() if one.n_empty]
    if answer.names and "-1" in answer.values:
        conditions.append(f"{{{output}}} is not -1")
    keys = {
        "kind": ("classification" if answer.is_class else "text-to-text", _about(answer)),
        "source": (source, parted),
        "k": _size(answer, n_rows, files),
        "input": (text, _lengths(used[key] for key in inputs)),
        "output": (named, _lengths([answer]) if answer.is_text and not answer.is_class else ""),
    }
    options = answer.names or sorted(answer.values if answer.is_class else ())
    if len(options) > 1:
        keys["options"] = (options if len(options) <= _LISTED else FROM_TRAIN, "")
    keys["metric"] = ("accuracy" if "options" in keys else "exact", "")
    if answer.names:
        keys["labels"] = (answer.names, "")
    if answer.kinds == {list}:
        keys["references"] = ("all", "each item is a right answer")
    if conditions:
        n_empty = max(one.n_empty for one in used.values())
        keys["rows"] = (" and ".join(conditions), f"{n_empty:,} rows are left out")
    return _printed(name, keys, columns, used, n_rows)


def _printed(
    name: str,
    keys: Mapping[str, tuple[Any, str]],
    columns: Iterable[str],
    used: Container[str],
    n_rows: int,
) -> str:
    """Return the lines of a task with comments, after a check."""
    others = [key for key in columns if key not in used]
    comment = f"{n_rows:,} rows" + (f"; not used: {', '.join(others)}" if others else "")
    lines = [f"  {name}:", *(f"    {key}: {_yaml(v)}" for key, (v, _) in keys.items())]
    _check("tasks:\n" + "\n".join(lines), name)
    notes = [comment, *(note for _, note in keys.values())]
    printed = (
        f"{line}  # {squeeze(note)}" if note else line
        for line, note in zip(lines, notes, strict=True)
    )
    return "\n".join(printed) + "\n"


def _yaml(value: Any) -> str:
    """Return a value in YAML's flow style, in which JSON is valid; plain words are unquoted."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(each)}' for key, each in value.items())}}}"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z-]*", value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _check(text: str, name: str) -> None:
    """Convert all records of a proposal; raises a `TaskError` with the place of a problem."""
    (task,) = parse_tasks(text, f"the proposal for '{name}'", Path().resolve()).values()
    with tempfile.TemporaryDirectory() as scratch:
        write_samples(task, Path(scratch), [100])


def _delimiter(path: Path) -> str | None:
    """Return the separator of a table whose default would not give columns of equal length."""
    if not {".csv", ".tsv"} & {*path.suffixes[-2:]} or is_saved(path):
        return None
    for mark in (None, *DELIMITERS):
        with suppress(TaskError):
            if all(len(record) > 1 for record in islice(read_records(path, (), mark), 101)):
                return mark
    return None  # the reader reports the problem


def _class_names(path: Path) -> dict[str, list[str]]:
    """Return the names of classes that are stored as numbers, by column."""
    if path.suffix != ".parquet" and not is_saved(path):
        return {}
    import datasets
    import pyarrow.parquet as pq

    if is_saved(path):
        saved: Any = datasets.load_from_disk(str(path))
        features: Mapping[str, Any] = saved.features
    else:
        features = datasets.Features.from_arrow_schema(pq.read_schema(path))
    return {key: one.names for key, one in features.items() if hasattr(one, "names")}


def _columns(path: Path, delimiter: str | None) -> tuple[dict[str, _Column], int]:
    """Return the columns, with those of nested objects, and the number of records."""
    columns: dict[str, _Column] = {}
    n_rows = 0
    for record in read_records(path, (), delimiter):
        n_rows += 1
        for key, value in _flat(record):
            columns.setdefault(key, _Column()).add(value)
    names = _class_names(path)
    for key, one in columns.items():
        one.n_empty = n_rows - one.n_rows
        one.names = ["false", "true"] if one.kinds == {bool} else names.get(key, [])
    return columns, n_rows


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _place(key: str, names: Sequence[str]) -> int:
    """Return the place of a column's name among common ones, or their number."""
    places = [names.index(part) for part in key.lower().split(".") if part in names]
    return min(places, default=len(names))


def _output(columns: Mapping[str, _Column]) -> str | None:
    """Return the column of the answers: by name, by few values, or the last."""
    able = [key for key, one in columns.items() if one.is_text or one.kinds in ({list}, {bool})]
    known = [key for key in able if _place(key, _OUTPUTS) < len(_OUTPUTS)]
    classes = [key for key in able if columns[key].is_class]
    if known:
        return min(known, key=lambda key: _place(key, _OUTPUTS))
    if classes:
        return min(classes, key=lambda key: len(columns[key].values))
    return able[-1] if len(able) > 1 else None


def _inputs(columns: Mapping[str, _Column], output: str) -> list[str]:
    """Return the columns of the input: all with a known name or sentences, or the longest."""
    able = [key for key, one in columns.items() if key != output and one.is_text]
    answers = [key for key in able if _place(key, _OUTPUTS) < len(_OUTPUTS)]
    prose = [key for key in able if columns[key].is_prose and key not in answers]
    known = [key for key in able if _place(key, _INPUTS) < len(_INPUTS) or key in prose]
    return known or sorted(able, key=lambda key: -columns[key].n_characters)[:1]


def _size(answer: _Column, n_rows: int, files: Mapping[str, Path]) -> tuple[Any, str]:
    """Return `k` with a comment: all rows, or as many as leave the same number to validate."""
    if "dev" in files:
        return "all", "every row is used"
    share = 1.0 if "test" in files else 0.8
    if answer.is_class:
        counts = answer.values.values()
        k = max(min(counts), min(16, max(counts)))
        note = f"rows of each label to train, and as many to validate; labels have {min(counts):,}"
        return max(1, int(share * k / 2)), f"{note} to {max(counts):,}"
    k = int(share * (n_rows - answer.n_empty)) // 2
    return max(1, k), "rows to train, and as many to validate"


def _about(answer: _Column) -> str:
    if not answer.is_class:
        return ""
    common = answer.values.most_common(3)
    if answer.names:
        common = [(dict(enumerate(answer.names)).get(int(label), label), n) for label, n in common]
    listed = ", ".join(f"{shown(label)} {n:,}" for label, n in common)
    return f"{len(answer.values)} labels: {listed}{', ...' if len(answer.values) > 3 else ''}"


def _lengths(columns: Iterable[_Column]) -> str:
    pairs = [(one.n_characters / max(one.n_rows, 1), one.longest) for one in columns]
    mean, longest = map(sum, zip(*pairs, strict=True))
    return f"{mean:,.0f} characters on average, at most {longest:,}"
