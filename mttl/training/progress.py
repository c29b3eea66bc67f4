"""A progress bar that counts all steps of a training and estimates the time left."""

import math
import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mttl.runtime.progress_bar import (
    SECONDS_BETWEEN_LINES,
    SECONDS_BETWEEN_LOSSES,
    time_left,
)


class TrainingProgress(ProgressBar):
    """Counts all steps of a run, not those of an epoch, so that the time left is the run's.

    Validations and tests get a bar of their own below it. Where the output is not a terminal,
    it prints a line from time to time instead.

    Args:
        console: Where to draw; standard error by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._training: TaskID | None = None
        self._evaluation: TaskID | None = None
        self._last_news = 0.0
        self._started = 0.0
        self._first_step = self._answered = 0
        self._enabled = True

    def disable(self) -> None:
        """Draw nothing: Lightning asks for this on all processes but the first."""
        self._enabled = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the bar at the step of a resumed run."""
        total = trainer.estimated_stepping_batches
        self._training = self._add(
            "training", None if math.isinf(total) else int(total), trainer.global_step
        )
        self._last_news = self._started = time.monotonic()
        self._first_step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Move the bar to the current step."""
        if not self._enabled or self._training is None:
            return
        assert self._progress is not None
        self._progress.update(self._training, completed=trainer.global_step)
        if not self._news_is_due():
            return
        shown = self._shown(trainer)
        self._progress.update(self._training, shown=shown)
        if not self.console.is_terminal:
            step, total = trainer.global_step, trainer.estimated_stepping_batches
            left = time_left(
                step - self._first_step, total - step, time.monotonic() - self._started
            )
            self.console.print(f"step {step} of {total:.0f}{shown}{left}", highlight=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close the bar, so that a message starts on a line of its own."""
        self._close()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show a bar of the validation."""
        self._evaluation = self._add("validating", _total(trainer.num_val_batches))

    def on_validation_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Move the bar of the validation."""
        self._advance_evaluation()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the bar of the validation and say what came out."""
        self._end_evaluation()
        score = trainer.callback_metrics.get("val/score")
        if self._enabled and score is not None and not trainer.sanity_checking:
            self.console.print(
                f"step {trainer.global_step}: mean score {float(score):.3f} on development rows",
                highlight=False,
            )

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show a bar of the test."""
        self._evaluation = self._add("answering", _total(trainer.num_test_batches))
        self._last_news = time.monotonic()
        self._answered = 0

    def on_test_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Move the bar of the test."""
        self._advance_evaluation()
        self._answered += 1
        if self._news_is_due() and not self.console.is_terminal:
            self.console.print(
                f"answered {self._answered} of {_total(trainer.num_test_batches)} batches",
                highlight=False,
            )

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar of the test."""
        self._end_evaluation()

    def _news_is_due(self) -> bool:
        now = time.monotonic()
        terminal = self.console.is_terminal
        between = SECONDS_BETWEEN_LOSSES if terminal else SECONDS_BETWEEN_LINES
        if not self._enabled or now - self._last_news <= between:
            return False
        self._last_news = now
        return True

    def _add(self, name: str, total: int | None, completed: int = 0) -> TaskID | None:
        if not self._enabled:
            return None
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(elapsed_when_finished=False),
                TextColumn("{task.fields[shown]}"),
                console=self.console,
                transient=True,
                disable=not self.console.is_terminal,
            )
            self._progress.start()
        return self._progress.add_task(name, total=total, completed=completed, shown="")

    def _advance_evaluation(self) -> None:
        if self._progress is not None and self._evaluation is not None:
            self._progress.advance(self._evaluation)

    def _end_evaluation(self) -> None:
        if self._progress is not None and self._evaluation is not None:
            self._progress.remove_task(self._evaluation)
        self._evaluation = None
        if self._training is None:
            self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._training = self._evaluation = None

    def _shown(self, trainer: pl.Trainer) -> str:
        loss = trainer.progress_bar_metrics.get("train/loss")
        return "" if loss is None else f" loss {float(loss):.3f}"  # type: ignore[arg-type]


def _total(batches: list[int | float] | int | float) -> int | None:
    counts = batches if isinstance(batches, list) else [batches]
    total = sum(counts)
    return None if math.isinf(total) else int(total)
