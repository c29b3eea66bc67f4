"""The checkpoint to resume from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint

from mttl.checkpoints.checkpoint_file import check_weights
from mttl.io.errors import TrainingError

# The first checkpoint comes after this fraction of the interval; distances then double up to it.
FIRST = 1 / 20


class SaveLast(Checkpoint):
    """Saves the state to resume from: after validations, at the end, and every so many steps.

    Between validations it saves just before a batch, when all that belongs to earlier ones is over:
    in a hook at the end of a step the logs of the step and the end of its epoch would be missing,
    and Lightning's counts of epochs would be one behind in a run that was resumed twice.

    It is a `Checkpoint` because Lightning runs those after all other callbacks, in the order given:
    put it after them, so that what they learned from a validation is in the state.

    Args:
        checkpoint: Where to save.
        every_n_steps: Most steps between two checkpoints.

    Attributes:
        accumulating: Whether gradients wait for another batch: they are in no checkpoint.
        leave_if_asked: Called before each batch, and may end the training.
    """

    def __init__(self, checkpoint: Path, every_n_steps: int = 1000) -> None:
        self.checkpoint = checkpoint
        self.every_n_steps = every_n_steps
        self.accumulating = False
        self.leave_if_asked: Callable[[pl.Trainer], None] = lambda trainer: None
        self._last_step = self._saved_at = 0

    def save(self, trainer: pl.Trainer) -> None:
        """Save, unless this very step was saved already.

        Lightning counts steps on from there; from a point after the validation of the step it would
        count it twice.

        Raises:
            TrainingError: If weights are not finite, or the run's folder is gone.
        """
        if trainer.global_step == self._saved_at:
            return
        if self._saved_at and trainer.is_global_zero and not self.checkpoint.is_file():
            raise TrainingError(
                f"'{self.checkpoint}' was removed while the run went on. Start the run again"
            )
        check_weights(trainer.lightning_module, trainer.global_step)
        # What was logged up to here first: a resumed run takes it from there.
        for logger in trainer.loggers:
            logger.save()
        trainer.save_checkpoint(self.checkpoint)
        self._saved_at = trainer.global_step

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin at the step of a resumed run, and look before each batch whether it is time."""
        self._last_step = self._saved_at = trainer.global_step
        loader: Any = trainer.train_dataloader  # `mttl.data.loader.ResumableLoader`, or alike
        loader.before_batch = lambda: self.before_batch(trainer)

    def before_batch(self, trainer: pl.Trainer) -> None:
        """Leave if asked; save if the last time was long ago, and no gradients wait."""
        self.leave_if_asked(trainer)
        distance = min(self.every_n_steps, max(self._saved_at, int(FIRST * self.every_n_steps), 1))
        if not self.accumulating and trainer.global_step - self._saved_at >= distance:
            self.save(trainer)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Note whether gradients wait."""
        self.accumulating = trainer.global_step == self._last_step
        self._last_step = trainer.global_step

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a validation, unless gradients wait for another batch."""
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if fitting and not self.accumulating:
            self.save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end."""
        self.save(trainer)
