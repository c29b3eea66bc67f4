"""Scores of a comparison, and its Markdown tables."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mttl.io.errors import MttlError
from mttl.io.reading import read_table, to_number

if TYPE_CHECKING:
    from mttl.analysis.bootstrap import Key


class TaskScore(NamedTuple):
    """One score on test rows in %; NaN if the metric is undefined."""

    method: str
    mode: str  # of adaptation; empty for training tasks
    seed: int
    side: str  # seen or unseen
    task: str
    sample: int
    score: float
    fold: int = 0
    rows: str = ""  # `mttl.tasks.folder.Gym.digest`; empty if unknown


class Mean(NamedTuple):
    """A mean over tasks and its 95 % interval (NaN for a single score)."""

    mean: float
    low: float
    high: float


class TableRow(NamedTuple):
    """One row of the main table: scores in %, paired differences, and costs as means over seeds."""

    method: str
    trained: int  # trained parameters of skills and router, or of the mode
    n_seeds: int
    seen: float
    unseen: float
    seen_difference: Mean
    unseen_difference: Mean
    training_minutes: float = math.nan
    adaptation_minutes: float = math.nan
    peak_mib: float = math.nan


def read_seen(path: Path, method: str, seed: int, fold: int = 0) -> list[TaskScore]:
    """Return the test scores of the training tasks in ``results.csv``.

    Those of levels are the success rates of policies with their most probable actions.
    """
    found = []
    for row in read_table(path, MttlError, ["task", "split", "sample", "score"]):
        policy = (row["sample"], row.get("metric")) == ("greedy", "success")
        if row["task"] == "mean" or not (policy or row["split"] == "test"):
            continue
        sample = "0" if policy else row["sample"]
        found.append(
            TaskScore(
                *(method, "", seed, "seen", row["task"]),
                sample=int(to_number(sample, f"'{path}': a sample", MttlError)),
                score=100 * to_number(row["score"], f"'{path}': a score", MttlError),
                fold=fold,
            )
        )
    return found


def check_rows(
    scores: Iterable[TaskScore], digest: Callable[[str, int], str] | None = None
) -> None:
    """Raise an `MttlError` if scores of one sample have different rows or metrics."""
    first: dict[tuple[str, int], TaskScore] = {}
    other: dict[tuple[str, str], set[str]] = {}
    for score in (score for score in scores if score.rows):
        key = score.task, score.sample
        if key not in first and digest is not None:
            first[key] = score._replace(method="the task files now", rows=digest(*key))
        kept = first.setdefault(key, score)
        if kept.rows != score.rows:
            other.setdefault((kept.method, score.method), set()).add(score.task)
    for (one, another), tasks in other.items():
        named = ", ".join(sorted(tasks))
        raise MttlError(
            f"{one} and {another} were scored on different rows, or with different metrics, of "
            f"{named}: the task files have changed. Adapt again with another --out, or remove one"
        )


def by_seed(scores: Iterable[TaskScore]) -> dict[int, float]:
    """Return the mean over tasks of every seed; samples and folds are averaged first, NaN is 0.

    Seeds without scores of all tasks are unfinished and omitted.
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


def mean_score(scores: Iterable[TaskScore]) -> float:
    """Return the mean score over tasks of one method."""
    from mttl.analysis.bootstrap import mean_over_tasks, table  # imports numpy

    found = keyed(scores)
    return mean_over_tasks(table(found)) if found else math.nan


def keyed(scores: Iterable[TaskScore]) -> "dict[Key, float]":
    """Return the scores of one method by pairing key; NaN counts as 0."""
    return {(x.task, x.fold, x.seed, x.sample): _known(x.score) for x in scores}


def paired_difference(ours: Iterable[TaskScore], reference: Iterable[TaskScore]) -> Mean:
    """Return the mean difference of paired scores, with its 95 % interval."""
    from mttl.analysis.bootstrap import mean_and_interval  # imports numpy

    own, other = keyed(ours), keyed(reference)
    return Mean(*mean_and_interval({key: own[key] - other[key] for key in own if key in other}))


def main_table(lines: Sequence[TableRow], reference: str) -> str:
    """Return the main table as Markdown."""
    rows = []
    for line in lines:
        both = (line.seen_difference, line.unseen_difference)
        apart = [mean_cell(one) if line.method != reference else "" for one in both]
        rows.append(
            (
                *(f"`{line.method}`", f"{line.trained:,}", str(line.n_seeds)),
                *(_number(line.seen), apart[0], _number(line.unseen), apart[1]),
                *(_number(line.training_minutes), _number(line.adaptation_minutes)),
                _number(line.peak_mib, 0),
            )
        )
    heads = ("method", "trained", "seeds", "seen", f"− `{reference}`", "unseen")
    costs = ("training, CPU min", "adaptation, CPU min", "peak MiB")
    return markdown([*heads, f"− `{reference}`", *costs], rows)


def task_table(scores: Iterable[TaskScore], columns: Sequence[tuple[str, str]]) -> str:
    """Return a table with a row per unseen task and a column per method and mode."""
    cells: dict[str, dict[tuple[str, str], list[float]]] = {}
    for item in scores:
        found = cells.setdefault(item.task, {}).setdefault((item.method, item.mode), [])
        found.append(_known(item.score))
    rows = [
        [f"`{task}`", *(spread(found.get(column, [])) for column in columns)]
        for task, found in cells.items()
    ]
    return markdown(["task", *(f"`{label(*column)}`" for column in columns)], rows)


def label(method: str, mode: str) -> str:
    """Return the label of a method and adaptation mode."""
    return method if mode == "all" else f"{method}: {mode}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def flat_row(row: TaskScore | TableRow) -> Mapping[str, object]:
    """Return a row for a CSV file, with separate columns for intervals."""
    flat: dict[str, object] = {}
    for name, value in row._asdict().items():
        if isinstance(value, Mean):
            flat |= {f"{name}_{end}": f"{x:.4f}" for end, x in value._asdict().items()}
        else:
            flat[name] = f"{value:.4f}" if isinstance(value, float) else value
    return flat


def spread(values: Sequence[float]) -> str:
    """Return ``mean ± deviation`` of the defined scores, a single score, or an empty text."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "NaN" if values else ""
    text = f"{statistics.fmean(known):.1f}"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.1f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)})"


def _known(score: float) -> float:
    return 0.0 if math.isnan(score) else score


def _number(value: float, digits: int = 1) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def mean_cell(value: Mean) -> str:
    """Return a difference with its interval, both signed."""
    if math.isnan(value.mean):
        return ""
    interval = "" if math.isnan(value.low) else f" [{value.low:+.1f}, {value.high:+.1f}]"
    return f"{value.mean:+.1f}{interval}"
