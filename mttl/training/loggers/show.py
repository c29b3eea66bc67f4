"""The boards of a trainer: opened with the settings of the run, and shown what came out."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytorch_lightning as pl

from mttl.training.loggers.experiment_logger import Board

MOST_ROWS = 5  # answers of a task in a table


def boards_of(trainer: pl.Trainer) -> list[Board]:
    """Return the boards among the loggers of a trainer."""
    return [logger for logger in trainer.loggers if isinstance(logger, Board)]


def open_boards(trainer: pl.Trainer, settings: Mapping[str, Any]) -> None:
    """Open all, or none; the last thing that may refuse a run.

    Raises:
        ConfigError: If one does not start; nothing is left of the others then.
    """
    with ExitStack() as opened:
        for board in boards_of(trainer):
            board.open(settings)
            opened.callback(board.withdraw)
        opened.pop_all()


def show_answers(
    trainer: pl.Trainer, split: str, tasks: Sequence[str], answers: Sequence[Any]
) -> None:
    """Show the first answers to a split, of every task."""
    if not (boards := boards_of(trainer)):
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
    for board in boards:
        board.log_table(f"predictions/{split}", columns, table, trainer.global_step)


def close_boards(trainer: pl.Trainer, results: Sequence[Any]) -> None:
    """Show the scores of the end, and close all."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(f"{result.split}/{result.task}/{result.metric}", []).append(result.score)
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    for board in boards_of(trainer):
        if means:
            board.log_metrics(means, trainer.global_step)
        board.close()
