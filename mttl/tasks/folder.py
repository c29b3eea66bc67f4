"""A gym: a folder of few-shot tasks in the format of CrossFit's NLP Few-shot Gym.

``<directory>/<task>/<task>_<k>_<sample>_{train,dev,test}.tsv``, or the same with ``.jsonl`` (see
`mttl.tasks.rows`), and optionally ``<directory>/TASKS.csv`` with at least the columns `task` and
`metric` (and `description`).
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import get_args

from mttl.io.errors import TaskError, nearest
from mttl.io.reading import read_text, table_rows
from mttl.metrics.metric_names import METRIC_NAMES, TaskMetric, check_metric
from mttl.tasks.control import read_edges
from mttl.tasks.head_form import HeadForm, HeadKind
from mttl.tasks.record_template import RecordTemplate
from mttl.tasks.rows import ENDINGS, Row, RowFile
from mttl.tasks.task import FROM_ROWS, FROM_TRAIN, NUMBER, published_sums
from mttl.tasks.task_file import crossfit

SPLITS = ("train", "dev", "test")

# Parsed from the end, because task names may contain underscores and digits.
_FILE_NAME = re.compile(r"(?P<task>.+)_(\d+|all)_(?P<sample>\d+)_(?P<split>train|dev|test)")

_HOW_TO_BUILD = (
    "Build CrossFit's tasks with `mttl build`, the lexical tasks with `python "
    "scripts/gyms/build_lexical.py`, the grid with `python scripts/gyms/build_grid.py`; data.dir "
    "is the folder."
)


def options_cell(options: Sequence[str]) -> str:
    """Return options as a cell of TASKS.csv."""
    plain = not any("|" in option for option in options)
    return "|".join(options) if plain else json.dumps(list(options), ensure_ascii=False)


class Gym:
    """The tasks of one folder, which is listed once; rows are read on demand.

    ``metrics`` take precedence over those of TASKS.csv. Messages name the task ``file``, if given.

    Raises:
        TaskError: If the folder is missing or has no task, or ``metrics`` has an unknown task; also
            by methods that are called with an unknown task.
    """

    def __init__(
        self, directory: str | Path, metrics: Mapping[str, str] | None = None, file: str = ""
    ):
        self.directory = Path(directory)
        self.table = self.directory / "TASKS.csv"
        self.place = f"the task file '{file}'" if file else f"the folder '{self.directory}'"
        self.described_in = f"'{file or self.table}'"
        self.metrics = metrics or {}
        self._train_answers = cache(self._read_answers)
        self._heads: dict[str, HeadForm] = {}
        problem = ""
        if not self.directory.is_dir():
            problem = "is not a folder" if self.directory.exists() else "does not exist"
        elif not self._files:
            problem = "has no task; files must be <task>/<task>_<k>_<sample>_train.tsv or .jsonl"
        if problem:
            raise TaskError(f"the folder of tasks '{self.directory}' {problem}. {_HOW_TO_BUILD}")
        for task in self.metrics:
            self._files_of(task, "data.metrics: ")

    def tasks(self) -> list[str]:
        """Return the names of all tasks, sorted."""
        return list(self._files)

    def samples(self, task: str) -> list[int]:
        """Return the samples of a task, in ascending order."""
        return sorted({sample for sample, _ in self._files_of(task)})

    def file(self, task: str, split: str, sample: int) -> Path:
        """Return the path of one file, or raise a `TaskError` that lists the existing ones."""
        files = self._files_of(task)
        sample = self._stored(task, sample)
        if (sample, split) in files:
            return files[sample, split]
        present: Iterable[object] = (s for s in SPLITS if (sample, s) in files)
        what = f"{split} file for sample {sample}"
        if sample not in (samples := self.samples(task)):
            what, present = f"sample {sample}", samples
        raise TaskError(
            f"task '{task}' has no {what} in {self.place}; present: {', '.join(map(str, present))}."
        )

    def rows(self, task: str, split: str, sample: int, max_rows: int | None = None) -> list[Row]:
        """Return the rows of one file, in order; see `RowFile.rows`."""
        return list(RowFile.scan(self.file(task, split, sample)).rows(max_rows))

    def digest(self, task: str, sample: int) -> str:
        """Return a hash of a sample's rows and metric; equal hashes mean comparable scores."""
        sample = self._stored(task, sample)
        files = [path for (of, _), path in self._files_of(task).items() if of == sample]
        parts = [self.metric(task), *(RowFile.scan(path).digest for path in files)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]

    def metric(self, task: str) -> TaskMetric:
        """Return the task's metric: as given, from TASKS.csv, or from CrossFit's table.

        Raises a `TaskError` if there is no metric for the task, or its name is unknown.
        """
        given = self.metrics.get(task)
        name = given or self._said(task, "metric")
        if not name:
            if task not in crossfit():
                raise TaskError(
                    f"the metric of the task '{task}' is unknown, and it is not a task of "
                    f"CrossFit.{nearest(task, crossfit())} Add its metric to the folder's "
                    "TASKS.csv (columns task,metric)"
                )
            name = crossfit()[task].metric
        place = "data.metrics" if given else self.described_in
        text = self._said(task, "kind") == "text"
        check_metric(name, TaskError, f"{place}: the metric of '{task}'", text=text)
        published = task in published_sums() and name in METRIC_NAMES
        return TaskMetric(name, published=published, options=self.options(task))

    def description(self, task: str) -> str | None:
        """Return the description of a task in TASKS.csv, or None."""
        return self._said(task, "description") or None

    def descriptions(self, tasks: Iterable[str], use: str) -> dict[str, str]:
        """Return the descriptions of tasks; ``use`` is part of the error message."""
        found = {task: self._said(task, "description") for task in tasks}
        for task, text in found.items():
            if not text:
                raise TaskError(
                    f"{use}, but {self.described_in} has no description of '{task}'; add it as "
                    "'description'"
                )
        return found

    def options(self, task: str) -> list[str]:
        """Return the options of a task in TASKS.csv; empty if there are none.

        The cell has options separated by ``|``, a JSON list, or ``from train``: the sorted distinct
        first answers of the training rows. With ``from rows`` there are none for the whole task.
        """
        named = self._said(task, "options")
        if named == FROM_ROWS:
            return []
        if named == FROM_TRAIN:
            return self._train_answers(task)
        try:
            listed = json.loads(named)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            listed = named.split("|") if named else []
        return [option.strip() for option in listed]

    def has_choices(self, task: str) -> bool:
        """Return whether each row has its own options, in the column `CHOICES`."""
        return self._said(task, "options") == FROM_ROWS

    def head(self, task: str) -> HeadForm | None:
        """Return the form of a task with a head or of raw text; None if answers are generated.

        Labels are the options, or those of the training rows; ``options: number`` is a regression.
        """
        kind = self._said(task, "kind")
        if kind not in get_args(HeadKind):
            return None
        form = HeadForm.model_validate({"kind": kind})
        if form.kind == "text":
            return form
        if task not in self._heads:
            labels = [] if self._said(task, "options") == FROM_TRAIN else self.options(task)
            if not labels:
                answers = self._train_answers(task)
                labels = sorted({name for answer in answers for name in form.names(answer)})
            numbers = labels == [NUMBER]
            self._heads[task] = form.model_copy(update={"labels": [] if numbers else labels})
        return self._heads[task]

    def _read_answers(self, task: str) -> list[str]:
        """Return the sorted distinct first answers of all training rows."""
        files = (self.file(task, "train", sample) for sample in self.samples(task))
        return sorted({row.outputs[0] for file in files for row in RowFile.scan(file).rows()})

    def template(self, task: str) -> RecordTemplate | None:
        """Return the templates of a custom or controlled task, or None."""
        text, edges = self._said(task, "template"), read_edges(self.directory / task)
        place = f"{self.described_in}, template of '{task}'"
        found = RecordTemplate.parse(text, place) if text else None
        if edges:
            found = (found or RecordTemplate(input="{input}")).model_copy(update={"control": edges})
        return found

    def factors(self, task: str) -> list[str]:
        """Return the factors of a task as ``name=value``; raises a `TaskError` without any."""
        words = self._said(task, "factors").split()
        if not words or not all(re.fullmatch("[^=]+=.+", word) for word in words):
            raise TaskError(
                f"'{self.table}' has the factors '{' '.join(words)}' for '{task}'; "
                "write name=value name=value in the column 'factors'"
            )
        return words

    def category(self, task: str) -> str:
        """Return the category of a task in TASKS.csv; raises a `TaskError` without one."""
        if category := self._said(task, "category"):
            return category
        raise TaskError(
            f"'{self.table}' has no category for '{task}'; add it in the column 'category'"
        )

    def _stored(self, task: str, sample: int) -> int:
        """Return the number of a sample's files: all rows (`k: all`) are the same sample."""
        files = self._files_of(task)
        k = {path.stem.rsplit("_", 3)[1] for path in files.values()}
        if any(of == sample for of, _ in files) or k != {"all"}:
            return sample
        return min(of for of, _ in files)

    def has_sample(self, task: str, sample: int) -> bool:
        """Return whether a task has the files of a sample."""
        return self._stored(task, sample) in self.samples(task)

    def _said(self, task: str, column: str) -> str:
        """Return a cell of TASKS.csv; empty if it is missing."""
        return self._table.get(task, {}).get(column, "")

    @cached_property
    def _files(self) -> dict[str, dict[tuple[int, str], Path]]:
        """Files by task, then by (sample, split)."""
        tasks = {}
        for folder in sorted(path for path in self.directory.iterdir() if path.is_dir()):
            files: dict[tuple[int, str], Path] = {}
            for path in sorted(folder.iterdir()):
                match = _FILE_NAME.fullmatch(path.stem) if path.suffix in ENDINGS else None
                if match is None or match["task"] != folder.name:
                    continue
                key = int(match["sample"]), match["split"]
                if key in files:
                    raise TaskError(
                        f"task '{folder.name}' has two {key[1]} files for sample {key[0]}: "
                        f"'{files[key]}' and '{path}'; keep one."
                    )
                files[key] = path
            if files:
                tasks[folder.name] = files
        return tasks

    def _files_of(self, task: str, place: str = "") -> dict[tuple[int, str], Path]:
        if task not in self._files:
            raise TaskError(
                f"{place}{self.place} has no task '{task}'.{nearest(task, self._files)}"
            )
        return self._files[task]

    @cached_property
    def _table(self) -> dict[str, dict[str, str]]:
        """Rows of TASKS.csv by task."""
        table: dict[str, dict[str, str]] = {}
        if self.table.exists():
            text, columns = read_text(self.table, TaskError), ("task", "metric")
            for line, row in table_rows(text, str(self.table), TaskError, columns):
                cells = {key: value.strip() for key, value in row.items()}
                if cells["task"] in table:
                    raise TaskError(
                        f"{self.table}, line {line}: the task '{cells['task']}' occurs twice; "
                        "remove one line."
                    )
                table[cells["task"]] = cells
        return table
