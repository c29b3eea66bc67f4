"""Checkpoints to resume from, and leaving in good order."""

import logging
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

logger = logging.getLogger(__name__)


class SaveLast(Callback):
    """Saves the state to resume from: after validations, at the end, and every so many steps.

    Args:
        checkpoint: Where to save.
        every_n_steps: Most steps between two checkpoints.
    """

    def __init__(self, checkpoint: Path, every_n_steps: int = 1000) -> None:
        self.checkpoint = checkpoint
        self.every_n_steps = every_n_steps
        self._saved_at = -1

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save if the last time was long ago."""
        if trainer.global_step and trainer.global_step % self.every_n_steps == 0:
            self._save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a validation."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end."""
        self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.global_step != self._saved_at:
            self._saved_at = trainer.global_step
            trainer.save_checkpoint(self.checkpoint)


class GracefulStop(Callback):
    """On Ctrl-C or SIGTERM, finishes the step, saves, and leaves.

    The first signal asks; a second one ends the process at once, which loses what came after the
    last checkpoint.

    Args:
        checkpoint: Where to save.

    Attributes:
        received: The signal that asked, if any.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Start listening."""
        if stage == "fit":
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._ask)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the signals back."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save and leave if asked to, on all processes alike."""
        asked = self.received is not None
        if trainer.world_size > 1:
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked:
            trainer.save_checkpoint(self.checkpoint)
            raise StopRequested(self.received or signal.SIGINT)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        logger.warning(
            "stopping after this step, with a checkpoint; once more to stop at once without one"
        )


class StopRequested(Exception):
    """A run was asked to stop and has saved its state.

    Args:
        number: The signal that asked.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.number = number
