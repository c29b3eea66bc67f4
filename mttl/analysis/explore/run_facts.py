"""Readers of a run's scores, curves, answers and adapted tasks, for the interactive page.

They raise `CheckpointError` for damaged files.
"""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from envs.levels import file_name
from mttl.analysis.routing_record import read_arrays, read_metrics
from mttl.analysis.saved_scores import saved_scores
from mttl.io.record import Record

# Limits on the size of the page.
MOST_POINTS, MOST_ANSWERS, MOST_TEXT, MOST_ADAPTED = 120, 12, 240, 60
# Columns of metrics.csv: of a whole run, and of a task, with a place for its name.
CURVES = {name: name for name in ("train/loss", "val/loss", "val/score")}
CURVES["success rate"] = "success"
OF_TASKS = {
    **{"score": "val/{}/score", "loss": "val/{}/loss", "success rate": "success/{}"},
    **{"return": "reward/{}", "steps of an episode": "steps/{}"},
}
SPLITS = ("test", "dev")
METRICS = {"success": "success rate", "steps": "steps of an episode"}  # of policies
Curve = tuple[list[int], list[float]]
Facts = dict[str, Any]  # as the page takes them


class AnswerRow(Record):
    """A line of ``predictions/*.jsonl``: the answer to a row, and the accepted answers."""

    sample: int
    input: str
    references: list[str]
    prediction: str


def read_scores(folder: Path) -> dict[str, list[Facts]]:
    """Return the scores of every task, the test split first; empty without ``results.csv``.

    A score is a mean over samples, with ``split``, ``metric``, ``score`` and ``baselines`` by name.
    Greedy and sampled actions of policies have separate scores.
    """
    found, baselines = _means(folder / "results.csv"), _means(folder / "baselines.csv")
    scores: dict[str, list[Facts]] = {}
    ranked = sorted(found, key=lambda key: SPLITS.index(key[2]) if key[2] in SPLITS else -1)
    for _, task, split, metric in ranked:
        beside = {key[0]: x for key, x in baselines.items() if key[1:3] == (task, split)}
        score = {"score": found["", task, split, metric], "baselines": beside}
        of = f"{split} actions" if metric in METRICS else split
        named = {"split": of, "metric": METRICS.get(metric, metric)}
        scores.setdefault(task, []).append(named | score)
    return scores


def _means(path: Path) -> dict[tuple[str, str, str, str], float]:
    """Return means over samples by baseline, task, split and metric; undefined scores are 0."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for row in saved_scores(path):
        key = row.baseline, row.task, row.split, row.metric
        values.setdefault(key, []).append(0.0 if math.isnan(row.score) else row.score)
    return {key: sum(scores) / len(scores) for key, scores in values.items()}


def read_run_curves(
    folder: Path, tasks: Sequence[str]
) -> tuple[dict[str, Curve], dict[str, dict[str, Curve]]]:
    """Return the curves of the run by name, and those of its tasks by task and name."""
    curves = read_metrics(folder)

    def curve(column: str) -> Curve | None:
        if column not in curves:
            return None
        steps, values = curves[column]
        chosen = np.unique(np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(int))
        return steps[chosen].tolist(), [round(value, 5) for value in values[chosen].tolist()]

    def curves_of(columns: Mapping[str, str]) -> dict[str, Curve]:
        return {name: found for name, column in columns.items() if (found := curve(column))}

    of_tasks = {
        task: curves_of({name: column.format(task) for name, column in OF_TASKS.items()})
        for task in tasks
    }
    return curves_of(CURVES), of_tasks


def read_answers(folder: Path, task: str) -> Facts | None:
    """Return a sample of the answers to a task's rows, or None; the test split is preferred.

    Returns:
        ``split``; ``n_rows``; ``n_right``, the number of rows whose answer equals an accepted one;
        ``shown``, some right and some wrong rows: input, answer, accepted answers, whether right.
    """
    paths = {split: folder / "predictions" / f"{task}_{split}.jsonl" for split in SPLITS}
    split = next((split for split, path in paths.items() if path.is_file()), None)
    if split is None:
        return None
    counts = {True: 0, False: 0}
    shown: list[tuple[str, str, list[str], bool]] = []
    with paths[split].open("rb") as file:
        for number, line in enumerate(file, 1):
            row = AnswerRow.parse(line, f"'{paths[split]}', line {number}")
            right = row.prediction in row.references
            counts[right] += 1
            if counts[right] <= MOST_ANSWERS:
                accepted = [_short(text) for text in row.references[:3]]
                shown.append((_short(row.input), _short(row.prediction), accepted, right))
    return {"split": split, "n_right": counts[True], "n_rows": sum(counts.values()), "shown": shown}


def read_films(folder: Path, level: str) -> list[Facts]:
    """Return the names and data of a level's films in ``plots/films``, by `mttl babyai film`."""
    return [
        {"name": path.stem, "gif": base64.b64encode(path.read_bytes()).decode("ascii")}
        for path in sorted((folder / "plots" / "films").glob("*.gif"))
        if re.fullmatch(rf"{re.escape(file_name(level))}(-\d+)?", path.stem)
    ]


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def read_adapted(folder: Path) -> list[tuple[Facts, Float[np.ndarray, "S G K"]]]:
    """Return the saved adapted tasks of a run that have a history of their routing weights.

    Returns:
        For each, the data of the page and its routing weights over the adaptation. ``kept`` is the
        index of the step whose weights were kept, the first with the best score.
    """
    if not (folder / "plots" / "routing.npz").is_file():
        return []  # only tokens are routed
    places = sorted(folder.glob("adapt-*/models/*/plots/routing_history.npz"))[:MOST_ADAPTED]
    modes = {place.parents[3].name for place in places}
    return [_adapted(place.parents[1], several_modes=len(modes) > 1) for place in places]


def _adapted(place: Path, *, several_modes: bool) -> tuple[Facts, Float[np.ndarray, "S G K"]]:
    path = place / "plots" / "routing_history.npz"
    names = ("steps", "weights", "score_steps", "scores")
    steps, weights, score_steps, scores = read_arrays(path, names).values()
    by_task = read_scores(place)
    task = next((name for name in by_task if name != "mean"), place.name)
    mode = f", {place.parents[1].name.removeprefix('adapt-')}" if several_modes else ""
    curve = [round(float(score), 5) for score in np.nan_to_num(scores)]
    kept = len(steps) - 1
    if curve:
        kept = int(np.searchsorted(steps, min(score_steps[np.argmax(curve)], steps[-1])))
    facts = {
        "name": f"{place.name}{mode}",
        "category": "adapted from this run",
        "adapted": True,
        "scores": by_task.get(task, []),
        "answers": read_answers(place, task),
        "curves": {"score": (score_steps.tolist(), curve)},
        "steps": steps.tolist(),
        "kept": kept,
    }
    return facts, weights[:, :, 0].astype(np.float64)
