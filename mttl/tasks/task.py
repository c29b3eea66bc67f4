"""Definition of a task: source of its records, conversion to lines, and metric."""

import csv
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic.dataclasses import dataclass

from mttl.io.record import STRICT
from mttl.metrics.metric_names import metric_problem
from mttl.tasks.dialogue_files import DialogueFormat
from mttl.tasks.filters import TEXT_FILTERS
from mttl.tasks.functions import FUNCTIONS
from mttl.tasks.head_form import HeadKind
from mttl.tasks.rows import JSON_LINES, TSV

Kind = Literal["classification", "text-to-text", "dialogue", HeadKind]
References = Literal["one", "all", "distinct"]
ALL = "all"  # instead of a number of lines
FROM_TRAIN = "from train"  # instead of a list of options
FROM_ROWS = "from rows"  # each row has its own options, in this column:
CHOICES = "choices"
NUMBER = "number"  # of a head that answers numbers
Text = Annotated[str, Field(min_length=1)]
Side = Literal["train", "dev", "test"]


def _bound(value: Any) -> int | float:
    if type(value) not in (int, float) or value < 0 or (type(value) is float and value > 1):
        raise ValueError("must be a number of lines, or a fraction from 0.0 to 1.0")
    return value


Bound = Annotated[int | float, PlainValidator(_bound)]


def _count(value: Any) -> int | None:
    if value not in (ALL, None) and (type(value) is not int or value < 1):
        raise ValueError(f"must be a whole number of at least 1, or '{ALL}'")
    return None if value == ALL else value


def _options(value: Any) -> tuple[str, ...]:
    """Return the options, or the text that stands for them."""
    if isinstance(value, tuple):
        return value
    if value in (FROM_TRAIN, FROM_ROWS, NUMBER):
        return (value,)
    texts = [str(one).strip() for one in value] if isinstance(value, list) else []
    if any(isinstance(one, bool | list | dict | None) for one in value if texts) or (
        len(set(texts)) < max(2, len(texts)) or "" in texts
    ):
        raise ValueError(
            f"must be a list of at least two different answers, or '{FROM_TRAIN}' or "
            f"'{FROM_ROWS}'; quote true, false and null"
        )
    return tuple(texts)


def _metric(value: str) -> str:
    if problem := metric_problem(value):
        raise ValueError(problem)
    return value


Metric = Annotated[str, AfterValidator(_metric)]


@dataclass(frozen=True, config=STRICT)
class Holdout:
    """Split of the train lines for a task without a test split.

    The lines are shuffled with seed 42; the first ones, up to ``pool``, are for samples, and those
    from ``test_start`` (by default ``pool``) to ``test_end`` are the test file. Integer bounds are
    counts; a fraction means ``int(fraction * n)`` of ``n`` lines.
    """

    pool: Bound = 0.8
    test_start: Bound | None = None
    test_end: Bound | None = None


@dataclass(frozen=True, config=STRICT)
class Source:
    """Source of a task's records: a data set on the hub, or files if ``path`` is None.

    ``test_share`` takes the first ``int(share * n)`` test lines after shuffling with seed 42;
    ``mirrors`` are other names of the data set, to try in turn; ``unavailable`` is why the hub
    cannot provide it, and where to download it.
    """

    path: Text | None
    train: Text
    config: Text | None = None
    revision: Text | None = None
    test: Text | None = None
    holdout: Holdout | None = None
    test_share: Annotated[float, Field(gt=0, le=1)] | None = None
    columns: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    unavailable: Text | None = None
    dev: Text | None = None
    # Format of a file with one word per line, or of published pairs or dialogues.
    format: Literal["conll", "conllu", "wikiann", "xnli", DialogueFormat] | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None

    @property
    def splits(self) -> list[str]:
        """Splits or files that are read."""
        return [split for split in (self.train, self.dev, self.test) if split is not None]


@dataclass(frozen=True, config=STRICT)
class Task:
    """A task; `docs/reference/task_files.md` describes its keys and the template language.

    ``"distinct"`` references are the items of a list, with the filter `set`.
    """

    name: str
    source: Source
    k: Annotated[int | None, PlainValidator(_count)]
    kind: Kind
    input: Text
    output: Text
    metric: Metric
    category: str
    description: str
    labels: tuple[str, ...] = ()
    options: Annotated[tuple[str, ...], PlainValidator(_options)] = ()
    columns: tuple[Text, ...] = ()
    references: References = "one"
    rows: Text | None = None
    cleaning: Literal[*TEXT_FILTERS] | None = None  # type: ignore[valid-type]
    prepare: Literal[*FUNCTIONS] | None = None  # type: ignore[valid-type]
    side: Side = "train"
    control: dict[Metric, Annotated[int, Field(ge=2)]] = field(default_factory=dict)

    @property
    def ending(self) -> str:
        """File ending: TSV for CrossFit's tasks, as published, otherwise JSON Lines."""
        return TSV if self.name in published_sums() else JSON_LINES


@cache
def published_sums() -> Mapping[str, Mapping[str, str]]:
    """Return the MD5 sums of CrossFit's files by task and name, such as ``glue-rte_16_13_dev.tsv``.

    Source: https://github.com/INK-USC/CrossFit. The table has a row per task: `k`, the sum of the
    test file shared by all samples, and those of train and dev of every sample.
    """
    table = files("mttl.tasks").joinpath("md5.csv").read_text("ascii").splitlines()
    sums: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(table):
        own = sums[row["task"]] = {}
        for sample in (name.removeprefix("train_") for name in row if name[:6] == "train_"):
            for split in ("train", "dev", "test"):
                name = f"{row['task']}_{row['k']}_{sample}_{split}.tsv"
                own[name] = row.get(f"{split}_{sample}") or row[split]
    return sums
