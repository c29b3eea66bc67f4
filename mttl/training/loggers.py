"""Loggers: ``metrics.csv``, TensorBoard, and Weights & Biases."""

import contextlib
import logging
import math
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import UInt8
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers.logger import Logger
from torch.optim import Optimizer

from mttl.checkpoints.run_folder import dotted_settings
from mttl.checkpoints.whole_tensors import whole
from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.files import write_table
from mttl.io.reading import read_table, reason

logger = logging.getLogger(__name__)
COMPARED = ("val/score", "val/loss", "train/loss")  # columns of TensorBoard's hyperparameter page
STEP = "step"
MOST_ROWS = 5  # answers per task in a table


class _RunLogger(Logger):
    """Base class of loggers; hyperparameters are not logged."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass  # the run folder has the configuration


class MetricsFile(_RunLogger):
    """Writes metrics to a CSV file with one row per logged step.

    The whole file is written each time. In a resumed run, rows up to the step ``keep_until`` are
    kept; 0 starts a new file.
    """

    def __init__(self, path: Path, keep_until: int = 0) -> None:
        super().__init__()
        self.path = path
        self.rows: dict[int, dict[str, Any]] = {}
        if keep_until and path.is_file():
            for row in read_table(path, CheckpointError, ["step"]):
                step = int(row["step"])
                if step <= keep_until:
                    self.rows[step] = {name: value for name, value in row.items() if value != ""}

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        step = max(self.rows, default=0) if step is None else step
        self.rows.setdefault(step, {"step": step}).update(metrics)

    @rank_zero_only
    def save(self) -> None:
        if self.rows:
            columns = sorted({name for row in self.rows.values() for name in row} - {"step"})
            rows = (self.rows[step] for step in sorted(self.rows))
            write_table(self.path, ["step", *columns], rows)

    def finalize(self, status: str) -> None:
        self.save()


class ExperimentLogger(_RunLogger):
    """Base class of experiment loggers: errors at the start are raised, later ones are warnings."""

    title: str
    advice: str
    folder_name: str

    def __init__(self, folder: Path, resumed_step: int = 0) -> None:
        super().__init__()
        self.path = folder / self.folder_name
        self.resumed_step = resumed_step
        self._is_open = self._is_new = False

    @rank_zero_only
    def open(self, settings: Mapping[str, Any]) -> None:
        """Start the logger in the first process, before the run writes other files.

        Raises a `ConfigError` if the logger does not start; its files are removed.
        """
        self._is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._begin(settings)
        except Exception as error:
            self.withdraw()
            raise ConfigError(
                f"trainer.loggers: {self.title} does not start ({reason(error)}). {self.advice}, "
                f"or remove '{self.name}'"
            ) from error
        self._is_open = True

    @rank_zero_only
    def withdraw(self) -> None:
        """Stop before the run has started, and remove new files."""
        self.close(failed=True)
        if self._is_new:
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # the folder has other files
                self.path.parent.rmdir()

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._try(lambda: self._show_numbers(metrics, step or 0))

    def log_image(self, name: str, pixels: UInt8[np.ndarray, "H W 3"], step: int) -> None:
        self._try(lambda: self._show_image(name, pixels, step))

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        self._try(lambda: self._show_table(name, columns, rows, step))

    def finalize(self, status: str) -> None:
        """Close the logger if training failed; otherwise `close` follows after the results."""
        if status != "success":
            self.close(failed=True)

    def close(self, *, failed: bool = False) -> None:
        self._try(lambda: self._end(failed))
        self._is_open = False

    def _try(self, show: Callable[[], object]) -> None:
        if not self._is_open:
            return
        try:
            show()
        except Exception as error:
            self._is_open = False
            logger.warning("%s failed; the run continues without it: %s", self.title, reason(error))

    @abstractmethod
    def _begin(self, settings: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _show_numbers(self, numbers: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def _show_image(self, name: str, pixels: np.ndarray, step: int) -> None: ...

    @abstractmethod
    def _show_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None: ...

    @abstractmethod
    def _end(self, failed: bool) -> None: ...


class TensorBoard(ExperimentLogger):
    """Writes events to ``tensorboard/``; events after the resumed step are purged."""

    title = "TensorBoard"
    advice = "Check the free disk space"
    folder_name = "tensorboard"
    writer: Any

    def _begin(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams
        from torch.utils.tensorboard.writer import SummaryWriter

        purge = self.resumed_step + 1 if self.resumed_step else None
        self.writer = SummaryWriter(str(self.path), purge_step=purge)
        shown = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in settings.items()
        }
        for summary in hparams(shown, dict.fromkeys(COMPARED)):
            self.writer.file_writer.add_summary(summary)

    def _show_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def _show_image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.writer.add_image(name, pixels, step, dataformats="HWC")

    def _show_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
        self.writer.add_text(name, "\n".join(lines), step)

    def save(self) -> None:
        self._try(lambda: self.writer.flush())

    def _end(self, failed: bool) -> None:
        self.writer.close()


def _cell(text: str) -> str:
    """Return a Markdown cell with an escaped text as code."""
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;")):
        text = text.replace(plain, escaped)
    return "<code>" + "<br>".join(text.splitlines()) + "</code>"


class WeightsAndBiases(ExperimentLogger):
    """Logs to the project mttl under the run's name; files are in ``wandb/``.

    A resumed run continues with its earlier id.
    """

    title = "Weights & Biases"
    advice = "Log in with `wandb login`, or log offline with WANDB_MODE=offline"
    folder_name = "wandb"
    wandb: Any
    run: Any

    def _begin(self, settings: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        self.wandb = wandb
        earlier = {"id": known, "resume": "allow"} if (known := self._earlier_id()) else {}
        self.run = wandb.init(
            project="mttl",
            name=self.path.parent.name,
            dir=str(self.path.parent),
            config=dict(settings),
            settings=wandb.Settings(silent=True),
            **earlier,
        )
        self.run.define_metric("*", step_metric=STEP)
        kept = f"offline in {self.path}; upload it with `wandb sync`"
        logger.info("%s: %s", self.title, kept if self.run.offline else self.run.url)

    def _show_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log({**numbers, STEP: step})

    def _show_image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.run.log({name: self.wandb.Image(pixels), STEP: step})

    def _show_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int
    ) -> None:
        table = self.wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self.run.log({name: table, STEP: step})

    def _end(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))

    def _earlier_id(self) -> str | None:
        """Return the run id from the last folder's name: ``offline-run-20260101_000000-abcd``."""
        if not self.resumed_step:
            return None
        folders = sorted(self.path.glob("*run-*-*"), key=lambda path: path.name.split("run-")[1])
        return folders[-1].name.rpartition("-")[2] if folders else None


EXPERIMENT_LOGGERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def experiment_loggers(trainer: pl.Trainer) -> list[ExperimentLogger]:
    """Return the experiment loggers of a trainer."""
    return [logger for logger in trainer.loggers if isinstance(logger, ExperimentLogger)]


def open_loggers(trainer: pl.Trainer, text: str) -> None:
    """Start all loggers with a configuration; if one does not start, the others are removed."""
    with ExitStack() as opened:
        for logger in experiment_loggers(trainer):
            logger.open(dotted_settings(text))
            opened.callback(logger.withdraw)
        opened.pop_all()


def show_answers(
    trainer: pl.Trainer, split: str, tasks: Sequence[str], answers: Sequence[Any]
) -> None:
    """Log the first answers of every task on a split; ``answers`` are in task order."""
    columns = ("task", "input", "references", "prediction")
    table = [
        [str(tasks[one.task_id]), one.input, " | ".join(one.references), one.prediction]
        for _, of_task in groupby(answers, attrgetter("task_id"))
        for one in islice(of_task, MOST_ROWS)
    ]
    for logger in experiment_loggers(trainer):
        logger.log_table(f"predictions/{split}", columns, table, trainer.global_step)


def close_loggers(trainer: pl.Trainer, results: Sequence[Any]) -> None:
    """Log the final scores, and close all experiment loggers."""
    scores: dict[str, list[float]] = {}
    for result in results:
        scores.setdefault(f"{result.split}/{result.task}/{result.metric}", []).append(result.score)
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    for logger in experiment_loggers(trainer):
        if means:
            logger.log_metrics(means, trainer.global_step)
        logger.close()


class StepMonitor(Callback):
    """Logs learning rates, gradient norms by role before clipping, and tokens per second.

    They are not in ``metrics.csv``, which is reproducible, unlike speed.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._numbers: dict[str, float] = {}
        self._tokens: torch.Tensor | int = 0
        self._steps = 0  # fewer in the first record after a resume
        self._seconds = self._since = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._since = time.monotonic()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        self._steps += 1
        if (trainer.global_step + 1) % self.every_n_steps == 0:
            self._numbers |= rates_and_norms(optimizer)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        of_text = isinstance(batch, Mapping) and "input_ids" in batch
        if of_text:
            read, written = batch["attention_mask"].sum(), (batch["labels"] >= 0).sum()
            self._tokens = self._tokens + read + written
        if not self._numbers:
            return
        now = time.monotonic()
        seconds = self._seconds + now - self._since
        if of_text:
            tokens = float(trainer.strategy.reduce(self._tokens, reduce_op="sum"))
            self._numbers["speed/tokens_per_second"] = tokens / seconds
        self._numbers["speed/seconds_per_step"] = seconds / self._steps
        for logger in experiment_loggers(trainer):
            logger.log_metrics(self._numbers, trainer.global_step)
        self._numbers, self._tokens, self._steps = {}, 0, 0
        self._seconds, self._since = 0.0, now

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seconds += time.monotonic() - self._since

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._since = time.monotonic()


def rates_and_norms(optimizer: Optimizer) -> dict[str, float]:
    """Return the learning rate and gradient norm of every role."""
    numbers: dict[str, float] = {}
    squares: dict[str, float] = {}
    for group in optimizer.param_groups:
        role = group["name"].partition(" ")[0]
        numbers[f"lr/{role}"] = float(group["lr"])
        gradients = [p.grad for p in group["params"] if p.grad is not None]
        norm = float(whole(torch.nn.utils.get_total_norm(gradients))) if gradients else 0.0
        squares[role] = squares.get(role, 0.0) + norm**2
    return numbers | {f"grad_norm/{role}": math.sqrt(value) for role, value in squares.items()}
