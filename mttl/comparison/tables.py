"""Scores of a comparison, and its tables as Markdown and CSV."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mttl.errors import MttlError
from mttl.io.reading import read_table, to_number

if TYPE_CHECKING:
    from mttl.comparison.bootstrap import Key


@dataclass(frozen=True)
class Score:
    """One score on test rows.

    Attributes:
        method: Which method.
        mode: How it was adapted; empty for tasks of training.
        seed: Of training and adaptation.
        side: ``"seen"`` or ``"unseen"``.
        task: Which task.
        sample: Its few-shot sample.
        score: Per cent; NaN where the metric is undefined.
        fold: Which tasks were unseen in training; 0 without folds.
        rows: Of which rows and metric it is, `mttl.tasks.folder.Gym.digest`; empty where unknown.
    """

    method: str
    mode: str
    seed: int
    side: str
    task: str
    sample: int
    score: float
    fold: int = 0
    rows: str = ""


@dataclass(frozen=True)
class Mean:
    """A mean over tasks and the ends of its 95 % interval (NaN with a single score)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One row of the main table; scores in per cent, costs as means over seeds.

    Attributes:
        method: Its name; an adaptation mode other than ``all`` follows a colon.
        trained: Parameters of skills and router, or what the mode trains.
        n_seeds: How many seeds have ended.
        seen: Mean over the training tasks.
        unseen: Mean over the unseen tasks, after adaptation.
        seen_difference: To the reference, paired by task, fold, seed and few-shot sample.
        unseen_difference: The same on unseen tasks.
        training_minutes: Processor time of training and scoring.
        adaptation_minutes: Processor time of adapting to all unseen tasks, and of the search for
            rates before it.
        peak_mib: Largest resident memory of either.
        load_entropy: Entropy of the experts' loads over its maximum; NaN where tokens choose none.
        dropped: Share of choices that found no room, in per cent; NaN as well.
        rates: Rates of adaptation that were found, with how often; empty without a search.
    """

    method: str
    trained: int
    n_seeds: int
    seen: float
    unseen: float
    seen_difference: Mean
    unseen_difference: Mean
    training_minutes: float
    adaptation_minutes: float
    peak_mib: float
    load_entropy: float = math.nan
    dropped: float = math.nan
    rates: str = ""


@dataclass(frozen=True)
class Point:
    """One point of a curve over the number of examples.

    Attributes:
        method: Its name; a way to adapt other than ``all`` follows a colon.
        examples: Rows of every unseen task.
        score: Mean over tasks in per cent, with its interval.
        difference: To the reference with as many rows.
    """

    method: str
    examples: int
    score: Mean
    difference: Mean


def read_seen(path: Path, method: str, seed: int, fold: int = 0) -> list[Score]:
    """Read the test scores of the training tasks from ``results.csv``."""
    return [
        Score(
            *(method, "", seed, "seen", row["task"]),
            sample=int(to_number(row["sample"], f"'{path}': a sample", MttlError)),
            score=100 * to_number(row["score"], f"'{path}': a score", MttlError),
            fold=fold,
        )
        for row in read_table(path, MttlError, ["task", "split", "sample", "score"])
        if row["split"] == "test" and row["task"] != "mean"
    ]


def check_rows(scores: Iterable[Score], digest: Callable[[str, int], str] | None = None) -> None:
    """Refuse to compare scores of one sample that are of other rows, or by another metric.

    Args:
        scores: Of all methods.
        digest: That of the rows there are now, by task and sample, if more will be scored.

    Raises:
        MttlError: If two are, or one is of rows that are no longer there.
    """
    first: dict[tuple[str, int], Score] = {}
    other: dict[tuple[str, str], set[str]] = {}
    for score in (score for score in scores if score.rows):
        key = score.task, score.sample
        if key not in first and digest is not None:
            first[key] = replace(score, method="the gym as it is now", rows=digest(*key))
        kept = first.setdefault(key, score)
        if kept.rows != score.rows:
            other.setdefault((kept.method, score.method), set()).add(score.task)
    for (one, another), tasks in other.items():
        named = ", ".join(sorted(tasks))
        raise MttlError(
            f"{one} and {another} have other rows, or another metric, of {named}: the gym has "
            "changed in between, and a difference would say nothing. Adapt to them again in "
            "another folder (--out), or leave one out"
        )


def by_seed(scores: Iterable[Score]) -> dict[int, float]:
    """Return the mean over tasks of every seed; samples and folds first, NaN counts as 0.

    A seed that lacks a task of others has not ended: its mean is of other tasks, and left out.
    """
    found: dict[int, dict[str, list[float]]] = {}
    for item in scores:
        found.setdefault(item.seed, {}).setdefault(item.task, []).append(_known(item.score))
    everything = set[str]().union(*found.values())
    return {
        seed: statistics.fmean(statistics.fmean(group) for group in tasks.values())
        for seed, tasks in found.items()
        if tasks.keys() == everything
    }


def mean_score(scores: Iterable[Score]) -> float:
    """Return the mean over tasks of one method, as `mean_of`, without its interval."""
    from mttl.comparison.bootstrap import mean_over_tasks, table  # it brings numpy

    found = keyed(scores)
    return mean_over_tasks(table(found)) if found else math.nan


def keyed(scores: Iterable[Score]) -> "dict[Key, float]":
    """Return scores of one method by what they are paired by; NaN counts as 0."""
    return {(x.task, x.fold, x.seed, x.sample): _known(x.score) for x in scores}


def mean_of(scores: Iterable[Score]) -> Mean:
    """Return the mean over tasks of one method, with the 95 % interval of the bootstrap."""
    return _interval(keyed(scores))


def paired_difference(ours: Iterable[Score], reference: Iterable[Score]) -> Mean:
    """Return the mean difference of what both have scored, with its 95 % interval."""
    own, other = keyed(ours), keyed(reference)
    pairs = {key: own[key] - other[key] for key in own if key in other}
    return _interval(pairs)


def _interval(scores: "Mapping[Key, float]") -> Mean:
    from mttl.comparison.bootstrap import mean_and_interval  # it brings numpy

    return Mean(*mean_and_interval(scores))


def main_table(lines: Sequence[Line], reference: str) -> str:
    """Return the main table as Markdown, with loads of experts where any method has them."""
    tokens = any(not math.isnan(line.load_entropy) for line in lines)
    searched = any(line.rates for line in lines)
    rows = [
        (
            f"`{line.method}`",
            f"{line.trained:,}",
            str(line.n_seeds),
            _number(line.seen),
            mean_cell(line.seen_difference, "+") if line.method != reference else "",
            _number(line.unseen),
            mean_cell(line.unseen_difference, "+") if line.method != reference else "",
            _number(line.training_minutes),
            _number(line.adaptation_minutes),
            _number(line.peak_mib, 0),
            *((line.rates,) if searched else ()),
            *((_number(line.load_entropy, 3), _number(line.dropped)) if tokens else ()),
        )
        for line in lines
    ]
    heads = (
        *("method", "trained", "seeds", "seen", f"− `{reference}`"),
        *("unseen", f"− `{reference}`"),
        *("training, CPU min", "adaptation, CPU min", "peak MiB"),
        *(("rate of adaptation",) if searched else ()),
        *(("load entropy", "dropped, %") if tokens else ()),
    )
    return markdown(heads, rows)


def task_table(scores: Iterable[Score], columns: Sequence[tuple[str, str]]) -> str:
    """Return a row per unseen task and a column per method and mode, mean ± deviation."""
    cells: dict[str, dict[tuple[str, str], list[float]]] = {}
    for item in scores:
        cells.setdefault(item.task, {}).setdefault((item.method, item.mode), []).append(item.score)
    rows = [
        [f"`{task}`", *(_spread(found.get(column, [])) for column in columns)]
        for task, found in cells.items()
    ]
    return markdown(["task", *(f"`{label(*column)}`" for column in columns)], rows)


def label(method: str, mode: str) -> str:
    """Return how a method is called that was adapted in a mode."""
    return method if mode == "all" else f"{method}: {mode}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def to_csv(rows: Sequence[Score] | Sequence[Line] | Sequence[Point]) -> str:
    """Return rows as CSV, one line each, intervals as columns of their own."""
    flat = [_flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    for row in flat:
        tidy = {name: f"{x:.4f}" if isinstance(x, float) else x for name, x in row.items()}
        writer.writerow(tidy)
    return text.getvalue()


def _flat(row: Score | Line | Point) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in asdict(row).items():
        if isinstance(value, dict):
            flat |= {f"{name}_{end}": number for end, number in value.items()}
        else:
            flat[name] = value
    return flat


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    known = [_known(value) for value in values]
    deviation = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.1f}{deviation}"


def _known(score: float) -> float:
    return 0.0 if math.isnan(score) else score


def _number(value: float, digits: int = 1) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def mean_cell(value: Mean, sign: str = "") -> str:
    """Return a mean and its interval; a ``+`` writes the sign of positive numbers too."""
    if math.isnan(value.mean):
        return ""
    if math.isnan(value.low):
        return f"{value.mean:{sign}.1f}"
    return f"{value.mean:{sign}.1f} [{value.low:{sign}.1f}, {value.high:{sign}.1f}]"
