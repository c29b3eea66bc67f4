"""Scores of a comparison, and its tables as Markdown and CSV."""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from comparison.intervals import half_width
from mttl.errors import MttlError
from mttl.reading import parse_json, read_table, read_text, to_number


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
    """

    method: str
    mode: str
    seed: int
    side: str
    task: str
    sample: int
    score: float


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences and the ends of its 95 % interval (NaN with a single pair)."""

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
        seen_difference: To the reference, paired by seed.
        unseen_difference: The same on unseen tasks.
        training_minutes: Processor time of training and scoring.
        adaptation_minutes: Processor time of adapting to all unseen tasks.
        peak_mib: Largest resident memory of either.
        load_entropy: Entropy of the experts' loads over its maximum; NaN where tokens choose none.
        dropped: Share of choices that found no room, in per cent; NaN as well.
    """

    method: str
    trained: int
    n_seeds: int
    seen: float
    unseen: float
    seen_difference: Difference
    unseen_difference: Difference
    training_minutes: float
    adaptation_minutes: float
    peak_mib: float
    load_entropy: float = math.nan
    dropped: float = math.nan


def read_seen(path: Path, method: str, seed: int) -> list[Score]:
    """Read the test scores of the training tasks from ``results.csv``."""
    return [
        Score(
            *(method, "", seed, "seen", row["task"]),
            sample=int(to_number(row["sample"], f"'{path}': a sample", MttlError)),
            score=100 * to_number(row["score"], f"'{path}': a score", MttlError),
        )
        for row in read_table(path, MttlError, ["task", "split", "sample", "score"])
        if row["split"] == "test" and row["task"] != "mean"
    ]


def read_unseen(path: Path, method: str, mode: str, seed: int) -> list[Score]:
    """Read the test scores of the unseen tasks from ``results.jsonl``."""
    scores = []
    for line in read_text(path, MttlError).splitlines():
        row = parse_json(line, f"'{path}'", MttlError, dict)
        score = math.nan if row["test"] is None else 100 * row["test"]
        scores.append(Score(method, mode, seed, "unseen", row["task"], row["sample"], score))
    return scores


def by_seed(scores: Iterable[Score]) -> dict[int, float]:
    """Return the mean over tasks of every seed; samples are averaged first, NaN counts as 0."""
    found: dict[int, dict[str, list[float]]] = {}
    for item in scores:
        score = 0.0 if math.isnan(item.score) else item.score
        found.setdefault(item.seed, {}).setdefault(item.task, []).append(score)
    return {
        seed: statistics.fmean(statistics.fmean(group) for group in tasks.values())
        for seed, tasks in found.items()
    }


def paired_difference(ours: Mapping[int, float], reference: Mapping[int, float]) -> Difference:
    """Return the mean difference of the seeds that both have, with Student's 95 % interval.

    One training is one observation: scores of tasks and samples that share a trained inventory are
    not independent, so the interval comes from the seeds alone, ``mean ± t · s / √n``.
    """
    pairs = [ours[seed] - reference[seed] for seed in sorted(ours.keys() & reference.keys())]
    if not pairs:
        return Difference(math.nan, math.nan, math.nan)
    mean, half = statistics.fmean(pairs), half_width(pairs)
    return Difference(mean, mean - half, mean + half)


def main_table(lines: Sequence[Line], reference: str) -> str:
    """Return the main table as Markdown, with loads of experts where any method has them."""
    tokens = any(not math.isnan(line.load_entropy) for line in lines)
    rows = [
        (
            f"`{line.method}`",
            f"{line.trained:,}",
            str(line.n_seeds),
            _number(line.seen),
            _difference(line.seen_difference) if line.method != reference else "",
            _number(line.unseen),
            _difference(line.unseen_difference) if line.method != reference else "",
            _number(line.training_minutes),
            _number(line.adaptation_minutes),
            f"{line.peak_mib:.0f}",
            *((_number(line.load_entropy, 3), _number(line.dropped)) if tokens else ()),
        )
        for line in lines
    ]
    heads = (
        *("method", "trained", "seeds", "seen", f"− `{reference}`"),
        *("unseen", f"− `{reference}`"),
        *("training, CPU min", "adaptation, CPU min", "peak MiB"),
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


def lines_csv(lines: Iterable[Line]) -> str:
    """Return the main table as CSV."""
    return _csv([flat_line(line) for line in lines])


def scores_csv(scores: Iterable[Score]) -> str:
    """Return every score as CSV, one line each."""
    return _csv([asdict(score) for score in scores])


def flat_line(line: Line) -> dict[str, object]:
    """Return a line whose intervals are columns of their own."""
    flat: dict[str, object] = {}
    for name, value in asdict(line).items():
        if isinstance(value, dict):
            flat |= {f"{name}_{end}": number for end, number in value.items()}
        else:
            flat[name] = value
    return flat


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        tidy = {name: f"{x:.4f}" if isinstance(x, float) else x for name, x in row.items()}
        writer.writerow(tidy)
    return text.getvalue()


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    known = [0.0 if math.isnan(value) else value for value in values]
    deviation = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.1f}{deviation}"


def _number(value: float, digits: int = 1) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _difference(value: Difference) -> str:
    if math.isnan(value.mean):
        return ""
    if math.isnan(value.low):
        return f"{value.mean:+.1f}"
    return f"{value.mean:+.1f} [{value.low:+.1f}, {value.high:+.1f}]"
