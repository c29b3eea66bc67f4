"""What a task is: where its records are, how one becomes a line, and how an answer is scored."""

import csv
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic.dataclasses import dataclass

from mttl.io.errors import nearest
from mttl.io.record import STRICT
from mttl.metrics.metric_names import MetricName
from mttl.tasks.filters import TEXT_FILTERS
from mttl.tasks.functions import FUNCTIONS
from mttl.tasks.rows import JSON_LINES, TSV

Kind = Literal["classification", "text-to-text"]
References = Literal["one", "all", "distinct"]
ALL = "all"  # in place of a number of lines
Text = Annotated[str, Field(min_length=1)]
Side = Literal["train", "dev", "test"]


def _bound(value: Any) -> int | float:
    if type(value) not in (int, float) or value < 0 or (type(value) is float and value > 1):
        raise ValueError("must be a number of lines, or a share from 0.0 to 1.0")
    return value


Bound = Annotated[int | float, PlainValidator(_bound)]


def _count(value: Any) -> int | None:
    if value not in (ALL, None) and (type(value) is not int or value < 1):
        raise ValueError(f"must be a whole number from 1 on, or '{ALL}'")
    return None if value == ALL else value


def _one_of(choices: Collection[str]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}.{nearest(value, choices)}")
        return value

    return check


@dataclass(frozen=True, config=STRICT)
class Holdout:
    """How one split is cut where a task has no test split of its own.

    Its lines are shuffled with seed 42; the first of them, up to ``pool``, are those that samples
    are drawn from, others the test file: by default all. A bound that is a whole number counts
    lines; a fraction is a share, ``int(share * n)`` of ``n`` lines.
    """

    pool: Bound = 0.8
    test_start: Bound | None = None
    test_end: Bound | None = None


@dataclass(frozen=True, config=STRICT)
class Source:
    """Where the records of a task are: a data set of the hub, or files.

    Attributes:
        path: Name of the data set; None where `train`, `dev` and `test` are files, not splits.
        train: What samples are drawn from.
        test: What the test file comes from; None: it is held out from `train`, by `holdout`.
        test_share: Only this share of the test lines counts: shuffled with seed 42, the first
            ``int(share * n)``. None: all of them, in their order.
        columns: Names of the columns of a TSV or CSV file that has no header.
        dev: What development rows come from; None: `train`.
        mirrors: Other names of the same data set, to try in turn.
        unavailable: Why the hub cannot give it, and where to get it by hand.
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

    @property
    def splits(self) -> list[str]:
        """The splits, or files, that are read."""
        return [split for split in (self.train, self.dev, self.test) if split is not None]


@dataclass(frozen=True, config=STRICT)
class Task:
    """A task; see `docs/reference/task_files.md` for the language of the templates.

    Attributes:
        k: Lines per label (classification) or lines in all (text-to-text) of train, and of dev;
            None: all there are.
        output: Template of the output; a list where `references` is not ``"one"``.
        labels: Names of the labels, in the order of their numbers.
        references: ``"one"`` right answer; ``"all"``: each item of a list; ``"distinct"``: of a
            list whose repeated items the template drops.
        rows: Which records are used, as a condition such as ``{label} is not -1``; None: all.
        cleaning: Name of a text filter for the whole input, after its template is filled.
        prepare: Name of a function in `mttl.tasks.functions` that the records pass through before
            the templates are filled.
        category: Two levels, such as ``classification/nli``.
        side: Of the partition that a run makes of its tasks.
    """

    name: str
    source: Source
    k: Annotated[int | None, PlainValidator(_count)]
    kind: Kind
    input: Text
    output: Text
    metric: MetricName
    category: str
    description: str
    labels: tuple[str, ...] = ()
    references: References = "one"
    rows: Text | None = None
    cleaning: Annotated[str, AfterValidator(_one_of(TEXT_FILTERS))] | None = None
    prepare: Annotated[str, AfterValidator(_one_of(FUNCTIONS))] | None = None
    side: Side = "train"

    @property
    def reproducible(self) -> bool:
        """Whether the published files can be rebuilt byte for byte for sure.

        Distinct answers were published in the order of a Python set, which no one can know.
        """
        return self.references != "distinct"

    @property
    def ending(self) -> str:
        """Of its files: those of CrossFit are TSV, as published; all others are JSON Lines."""
        return TSV if self.name in published_sums() else JSON_LINES


@cache
def published_sums() -> Mapping[str, Mapping[str, str]]:
    """Return the MD5 sums of CrossFit's files by task and name, such as ``glue-rte_16_13_dev.tsv``.

    They come with its code, https://github.com/INK-USC/CrossFit. The table has a row per task: `k`,
    the sum of the test file, which all samples share, and those of train and dev of every sample.
    """
    table = files("mttl.tasks").joinpath("md5.csv").read_text("ascii").splitlines()
    return {row["task"]: _by_file(row) for row in csv.DictReader(table)}


def _by_file(row: dict[str, str]) -> dict[str, str]:
    samples = [name.removeprefix("train_") for name in row if name.startswith("train_")]
    return {
        f"{row['task']}_{row['k']}_{sample}_{split}.tsv": row[
            split if split == "test" else f"{split}_{sample}"
        ]
        for sample in samples
        for split in ("train", "dev", "test")
    }
