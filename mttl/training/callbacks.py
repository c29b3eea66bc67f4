"""Callbacks that stop a training on a signal, and lower a router's temperature."""

import signal
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, Checkpoint

from mttl.checkpoints.run_callbacks import SaveLast
from mttl.io.errors import StopRequested
from mttl.runtime.stop_signals import StopRequest, handling


class GracefulStop(Checkpoint):
    """On Ctrl-C or SIGTERM, finishes the step and its validation, saves, and leaves.

    The first signal asks; a second one ends the training at once, which loses what came after the
    last checkpoint. After training, while answers are generated, the first one does. The state is
    saved by ``last``, a callback of the same trainer.
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
        self._first_step = trainer.global_step
        # Later than `setup`: Lightning's own handlers for training, which would end a validation
        # with exit status 0, are in place by now and come back afterwards.
        self._listening.enter_context(handling(self.request))
        # Not at the end of a step: its validation and its metrics would be lost.
        self.last.leave_if_asked = self._leave_if_asked

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave_if_asked(trainer)
        self._listening.close()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._listening.enter_context(handling(self._leave))

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._listening.close()

    def on_exception(self, *args: Any) -> None:
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


class TemperatureAnnealing(Callback):
    """Lowers the temperature of a router's draws along a geometric path over training.

    At fraction p of the way from the first step to the last it is ``start^(1 - p) · end^p``.
    """

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = end

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        router: Any = pl_module.model.router  # type: ignore[union-attr]
        last_step = trainer.estimated_stepping_batches - 1
        progress = min(1.0, trainer.global_step / max(1, last_step))
        router.temperature.fill_(self.start ** (1 - progress) * self.end**progress)
