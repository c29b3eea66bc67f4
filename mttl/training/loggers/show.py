"""The experiment loggers of a trainer: opened with the run's settings, closed with its scores."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytorch_lightning as pl

from mttl.training.loggers.experiment_logger import ExperimentLogger

MOST_ROWS = 5  # answers of a task in a table


def experiment_loggers(trainer: pl.Trainer) -> list[ExperimentLogger]:
    """Return the experiment loggers among the loggers of a trainer."""
    return [logger for logger in trainer.loggers if isinstance(logger, ExperimentLogger)]


def open_loggers(trainer: pl.Trainer, settings: Mapping[str, Any]) -> None:
    """Open all, or none; the last thing that may refuse a run.

    Raises:
        ConfigError: If one does not start; nothing is left of the others then.
    """
    with ExitStack() as opened:
        for logger in experiment_loggers(trainer):
            logger.open(settings)
            opened.callback(logger.withdraw)
        opened.pop_all()


def show_answers(
    trainer: pl.Trainer, split: str, tasks: Sequence[str], answers: Sequence[Any]
) -> None:
    """Show the first answers to a split, of every task."""
    if not (loggers := experiment_loggers(trainer)):
        return
    rows: dict[int, list[list[str]]] = {}
    for answer in answers:
        shown = rows.setdefault(answer.task_id, [])
        if len(shown) < MOST_ROWS:
            references = " | ".join(answer.references)
            name = str(tasks[answer.task_id])
            shown.append([name, answer.input, references, answer.prediction])
    columns = ("task", "input", "references", "prediction")
    table = [row for of_task in rows.values() for row in of_task]
    for logger in loggers:
        logger.log_table(f"predictions/{split}", columns, table, trainer.global_step)


def close_loggers(trainer: pl.Trainer, results: Sequence[Any]) -> None:
    """Show the scores of the end, and close all."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(f"{result.split}/{result.task}/{result.metric}", []).append(result.score)
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    for logger in experiment_loggers(trainer):
        if means:
            logger.log_metrics(means, trainer.global_step)
        logger.close()
