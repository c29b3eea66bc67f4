"""Predictions after training, their scores, and their files."""

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from mttl.analysis.explore.run_facts import AnswerRow
from mttl.io.files import THREADS, write_table, write_text
from mttl.metrics.crossfit import ignored_differences, score_answers
from mttl.runtime.processes import gathered
from mttl.tasks.partition import MEAN
from mttl.training.text_to_text import Prediction, TextToTextModule, answers_of, mean_score

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """One row of ``results.csv``: a task's score on one split of one sample."""

    task: str
    split: str
    sample: str
    seed: int
    metric: str
    score: float
    n: int

    def row(self) -> dict[str, Any]:
        """Return a row of the file."""
        return asdict(self) | {"score": f"{self.score:.6f}"}


COLUMNS = tuple(field.name for field in fields(Result))


def predict(trainer: pl.Trainer, module: TextToTextModule, loader: Any) -> list[Prediction]:
    """Return the answers to all rows of a loader, from all processes, in task order."""
    # Lightning's prediction loop would rebuild the loader with its batches; its test loop does not.
    trainer.test(module, dataloaders=loader, verbose=False)
    rows = [row for share in gathered(list(module.answers)) for row in share]
    return sorted(rows, key=lambda row: (row.task_id, row.row))


def score(
    rows: Sequence[Prediction], metrics: Mapping[str, str], split: str, seed: int
) -> list[Result]:
    """Return scores per task and sample, followed by their mean over tasks."""
    tasks = list(metrics)
    results, key = [], attrgetter("task_id", "sample")
    for (task_id, sample), own in groupby(sorted(rows, key=key), key):
        task, group = tasks[task_id], list(own)
        answers = answers_of(group)
        value = score_answers(metrics[task], *answers)
        if differing := ignored_differences(metrics[task], task, *answers[:2]):
            _log.warning("%s", differing)
        results.append(Result(task, split, str(sample), seed, metrics[task], value, len(group)))
    return [*results, mean_result(results)] if results else []


def mean_result(results: Sequence[Result]) -> Result:
    """Return the mean over tasks of the means over their samples."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(result.task, []).append(result.score)
    mean = mean_score([mean_score(samples) for samples in scores.values()])
    total = sum(result.n for result in results)
    return Result(MEAN, results[0].split, "all", results[0].seed, "mean", mean, total)


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write ``results.csv`` atomically."""
    write_table(path, COLUMNS, (result.row() for result in results))


def write_predictions(
    folder: Path, rows: Sequence[Prediction], tasks: Sequence[str], split: str
) -> None:
    """Write ``<task>_<split>.jsonl`` for every task."""
    key, texts = attrgetter("task_id"), dict[Path, str]()
    for task_id, group in groupby(sorted(rows, key=key), key):
        rows_of = ({name: getattr(row, name) for name in AnswerRow.model_fields} for row in group)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of)
        texts[folder / f"{tasks[task_id]}_{split}.jsonl"] = lines
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write_text, texts, texts.values()))
