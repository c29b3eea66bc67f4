"""Progress bar over all steps of a training, with the remaining time."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from mttl.runtime.progress_bar import Count, counting_bar


class TrainingProgress(ProgressBar):
    """Progress bar of a run, over all epochs.

    Validations and tests have a second bar. If the output is not a terminal, lines are printed at
    intervals instead.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._training: Count | None = None
        self._evaluation: Count | None = None
        self._enabled = True

    def disable(self) -> None:
        """Disable output; Lightning calls this on all processes except the first."""
        self._enabled = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        total = int(trainer.estimated_stepping_batches)
        self._training = self._count("training", total, trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if self._training is not None:
            self._training.set(trainer.global_step, lambda: _loss(trainer))

    def on_train_end(self, *args: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._training = self._evaluation = None

    on_exception = on_train_end  # type: ignore[assignment]  # messages start on a new line

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluation = self._count("validating", int(sum(trainer.num_val_batches)))

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        if self._evaluation is not None:
            self._evaluation.advance()

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_test_end()
        score = trainer.callback_metrics.get("val/score")
        if self._enabled and score is not None:
            self.console.print(
                f"step {trainer.global_step}: mean score {100 * float(score):.1f} % on development "
                "rows",
                highlight=False,
            )

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluation = self._count("answering batches", int(sum(trainer.num_test_batches)))

    def on_test_end(self, *args: Any) -> None:
        if self._evaluation is not None:
            self._evaluation.remove()
        self._evaluation = None
        if self._training is None:
            self.on_train_end()

    def _count(self, name: str, total: int, done: int = 0) -> Count | None:
        if not self._enabled:
            return None
        if self._bar is None:
            more = TimeElapsedColumn(), TextColumn("{task.fields[shown]}")
            self._bar = counting_bar(self.console, *more)
            self._bar.start()
        return Count(self.console, self._bar, name, total, done)


def _loss(trainer: pl.Trainer) -> str:
    loss: Any = trainer.progress_bar_metrics.get("train/loss")
    return "" if loss is None else f", loss {float(loss):.3f}"
