"""Callbacks that save the checkpoint to resume from, and stop a training on a signal."""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint

from mttl.errors import StopRequested
from mttl.stop_signals import StopRequest, handling


@runtime_checkable
class KnowsItsPosition(Protocol):
    """A loader that can continue anywhere, as `mttl.data.loader.ResumableLoader`.

    Attributes:
        before_batch: Called before each batch is handed out, and after the last.
    """

    before_batch: Callable[[], None] | None


class SaveLast(Checkpoint):
    """Saves the state to resume from: after validations, at the end, and every so many steps.

    It is a `Checkpoint` because Lightning runs those after all other callbacks, in the order given:
    put it after them, so that what they learned from a validation is in the state.

    Args:
        checkpoint: Where to save.
        every_n_steps: Most steps between two checkpoints.

    Attributes:
        accumulating: Whether gradients wait for another batch: they are in no checkpoint.
    """

    def __init__(self, checkpoint: Path, every_n_steps: int = 1000) -> None:
        self.checkpoint = checkpoint
        self.every_n_steps = every_n_steps
        self.accumulating = False
        self._validated_at = -1
        self._last_step = 0

    def save(self, trainer: pl.Trainer) -> None:
        """Save, unless the validation of this very step did.

        Lightning counts steps on from there; from any later point before the next step it would
        count one of them twice.
        """
        if trainer.global_step != self._validated_at:
            trainer.save_checkpoint(self.checkpoint)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin at the step of a resumed run."""
        self._last_step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Save if the last time was long ago."""
        self.accumulating = trainer.global_step == self._last_step
        self._last_step = trainer.global_step
        if not self.accumulating and trainer.global_step % self.every_n_steps == 0:
            self.save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a validation, unless gradients wait for another batch."""
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if fitting and not self.accumulating:
            self.save(trainer)
            self._validated_at = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the end."""
        self.save(trainer)


class GracefulStop(Checkpoint):
    """On Ctrl-C or SIGTERM, finishes the step and its validation, saves, and leaves.

    The first signal asks; a second one ends the training at once, which loses what came after the
    last checkpoint. After training, while answers are generated, the first one does.

    Args:
        last: Saves the state; a callback of the same trainer.

    Attributes:
        request: What the signals of training have asked.
    """

    def __init__(self, last: SaveLast) -> None:
        self.last = last
        self.request = StopRequest(
            "stopping after this step, with a checkpoint; once more to stop at once without one",
            at_once=self._leave,
        )
        self._listening = ExitStack()
        self._first_step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen, and look before each batch whether to leave."""
        self._first_step = trainer.global_step
        # Later than `setup`: Lightning's own handlers for training, which would end a validation
        # with exit status 0, are in place by now and come back afterwards.
        self._listening.enter_context(handling(self.request))
        loader = trainer.train_dataloader
        if not isinstance(loader, KnowsItsPosition):
            raise TypeError(
                f"the training loader is a {type(loader).__name__}; only a ResumableLoader, or "
                "another with `before_batch`, knows where to continue"
            )
        # Not at the end of a step: its validation and its metrics would be lost.
        loader.before_batch = partial(self._leave_if_asked, trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave if asked to after the last step; else give the signals back."""
        self._leave_if_asked(trainer)
        self._listening.close()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen."""
        self._listening.enter_context(handling(self._leave))

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the signals back."""
        self._listening.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back."""
        self._listening.close()

    def _leave_if_asked(self, trainer: pl.Trainer) -> None:
        asked = self.request.received is not None and not self.last.accumulating
        if trainer.world_size > 1:
            # All processes together, whichever was asked.
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked:
            if trainer.global_step != self._first_step:
                self.last.save(trainer)
            raise StopRequested(self.request.received or signal.SIGINT, self.last.checkpoint)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        # Not a KeyboardInterrupt, which Lightning turns into an exit status of its own.
        raise StopRequested(signal.Signals(number), self.last.checkpoint)
