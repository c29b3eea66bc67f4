"""What a run left behind besides its routing: scores, curves, answers, adapted tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.routing_record import read_arrays, read_metrics
from mttl.io.errors import CheckpointError
from mttl.io.reading import read_table, to_number
from mttl.io.record import Record

# What would make the page large is thinned out.
MOST_POINTS, MOST_ANSWERS, MOST_TEXT, MOST_ADAPTED = 120, 12, 240, 60
# Curves of a whole run; those of a task have its name in them.
CURVES = ("train/loss", "val/loss", "val/score", "success")
OF_TASKS = {"score": "val/{}/score", "loss": "val/{}/loss", "success": "success/{}"}
SPLITS = ("test", "dev")
Curve = tuple[list[int], list[float]]


class AnswerRow(Record):
    """The answer to a row, beside the accepted ones: a line of ``predictions/*.jsonl``."""

    sample: int
    input: str
    references: list[str]
    prediction: str


@dataclass(frozen=True)
class SplitScore:
    """The score of a task on a split, a mean over samples, beside the baselines."""

    split: str
    metric: str
    score: float
    baselines: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ShownAnswers:
    """Some answers to a task's rows.

    Attributes:
        split: Of the rows.
        n_right: How many of all are one of the accepted answers, to the letter.
        n_rows: How many there are.
        shown: Some right and some wrong ones: input, answer, accepted answers, whether it is right.
    """

    split: str
    n_right: int
    n_rows: int
    shown: list[tuple[str, str, list[str], bool]]


@dataclass(frozen=True)
class AdaptedTask:
    """A task that was adapted from a run, and how that went."""

    name: str
    scores: list[SplitScore]
    steps: Int[np.ndarray, "S"]
    rows: Float[np.ndarray, "S G K"]
    curve: Curve
    answers: ShownAnswers | None

    @property
    def kept(self) -> int:
        """The number of the record whose row was kept: the first of the best score."""
        if not self.curve[1]:
            return len(self.steps) - 1
        best = self.curve[0][int(np.argmax(self.curve[1]))]
        return int(np.searchsorted(self.steps, min(best, self.steps[-1])))


def read_scores(folder: Path) -> dict[str, list[SplitScore]]:
    """Return the scores of every task, test rows before others; nothing without ``results.csv``."""
    found = _means(folder / "results.csv", ())
    baselines = _means(folder / "baselines.csv", ("baseline",))
    scores: dict[str, list[SplitScore]] = {}
    ranked = sorted(found, key=lambda key: SPLITS.index(key[1]) if key[1] in SPLITS else -1)
    for task, split, metric in ranked:
        beside = {
            name: value
            for (name, other, part, _), value in baselines.items()
            if (other, part) == (task, split)
        }
        value = found[task, split, metric]
        scores.setdefault(task, []).append(SplitScore(split, metric, value, beside))
    return scores


def _means(path: Path, more: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Return means over samples by task, split and metric, behind what more columns say."""
    if not path.is_file():
        return {}
    values: dict[tuple[str, ...], list[float]] = {}
    columns = [*more, "task", "split", "metric", "score"]
    for row in read_table(path, CheckpointError, columns):
        score = to_number(row["score"], f"'{path}': a score", CheckpointError)
        # An undefined score counts as 0, as in every mean.
        key = tuple(row[name] for name in columns[:-1])
        values.setdefault(key, []).append(0.0 if math.isnan(score) else score)
    return {key: sum(scores) / len(scores) for key, scores in values.items()}


def read_run_curves(
    folder: Path, tasks: Sequence[str]
) -> tuple[dict[str, Curve], dict[str, dict[str, Curve]]]:
    """Return the curves over steps of the run, and those of its tasks, by name.

    Raises:
        CheckpointError: If ``metrics.csv`` is damaged.
    """
    curves = read_metrics(folder)

    def curve(column: str) -> Curve | None:
        if column not in curves:
            return None
        steps, values = curves[column]
        chosen = np.unique(np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(int))
        return steps[chosen].tolist(), [round(value, 5) for value in values[chosen].tolist()]

    whole = {name: found for name in CURVES if (found := curve(name))}
    own = {
        task: {
            name: found
            for name, column in OF_TASKS.items()
            if (found := curve(column.format(task)))
        }
        for task in tasks
    }
    return whole, own


def read_answers(folder: Path, task: str) -> ShownAnswers | None:
    """Return some answers to a task's rows, of the test rows if they were answered.

    Raises:
        CheckpointError: If a file is damaged.
    """
    for split in SPLITS:
        path = folder / "predictions" / f"{task}_{split}.jsonl"
        if path.is_file():
            break
    else:
        return None
    counts = {True: 0, False: 0}
    shown: list[tuple[str, str, list[str], bool]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = AnswerRow.parse(line, f"'{path}', line {number}")
            right = row.prediction in row.references
            counts[right] += 1
            if counts[right] <= MOST_ANSWERS:
                accepted = [_short(text) for text in row.references[:3]]
                shown.append((_short(row.input), _short(row.prediction), accepted, right))
    return ShownAnswers(split, counts[True], sum(counts.values()), shown)


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def read_adapted(folder: Path) -> list[AdaptedTask]:
    """Return the tasks that were adapted from a run and kept, if they say how their rows moved."""
    if not (folder / "plots" / "routing.npz").is_file():
        return []  # tokens alone are routed, and rows of tasks are none
    places = sorted(folder.glob("adapt-*/models/*/plots/routing_history.npz"))[:MOST_ADAPTED]
    modes = {place.parents[3].name for place in places}
    return [_adapted(place.parents[1], several_modes=len(modes) > 1) for place in places]


def _adapted(place: Path, *, several_modes: bool) -> AdaptedTask:
    path = place / "plots" / "routing_history.npz"
    arrays = read_arrays(path, ("steps", "weights", "score_steps", "scores"))
    by_task = read_scores(place)
    task = next((name for name in by_task if name != "mean"), place.name)
    mode = f", {place.parents[1].name.removeprefix('adapt-')}" if several_modes else ""
    return AdaptedTask(
        name=f"{place.name}{mode}",
        scores=by_task.get(task, []),
        steps=arrays["steps"],
        rows=arrays["weights"][:, :, 0].astype(np.float64),
        curve=(
            arrays["score_steps"].tolist(),
            [round(float(score), 5) for score in np.nan_to_num(arrays["scores"])],
        ),
        answers=read_answers(place, task),
    )
