"""Callbacks that stop training on a signal, and anneal a router's temperature."""

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
    """On Ctrl-C or SIGTERM, finishes the step and its validation, saves, and exits.

    A second signal stops immediately and loses the work since the last checkpoint. After training,
    while answers are generated, the first signal stops immediately. ``last`` saves the state.
    """

    def __init__(self, last: SaveLast) -> None:
        self.last = last
        self.request = StopRequest(
            "stopping after this step with a checkpoint; press again to stop immediately without "
            "one",
            at_once=self._leave,
        )
        self._listening = ExitStack()
        self._first_step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._first_step = trainer.global_step
        # Later than `setup`: by now Lightning's own handlers, which would end a validation with
        # exit status 0, are in place; they are restored afterwards.
        self._listening.enter_context(handling(self.request))
        # Not at the end of a step, where its validation and metrics would be lost.
        self.last.leave_if_asked = self._leave_if_asked

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave_if_asked(trainer)
        self._listening.close()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._listening.enter_context(handling(self._leave))

    def on_test_end(self, *args: Any) -> None:
        self._listening.close()

    on_exception = on_test_end  # type: ignore[assignment]

    def _leave_if_asked(self, trainer: pl.Trainer) -> None:
        asked = self.request.received is not None and not self.last.accumulating
        if trainer.world_size > 1:
            # All processes stop together, whichever received the signal.
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked:
            if trainer.global_step != self._first_step:
                self.last.save(trainer)
            raise StopRequested(self.request.received or signal.SIGINT, self.last.checkpoint)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        # Not a KeyboardInterrupt, for which Lightning has its own exit status.
        raise StopRequested(signal.Signals(number), self.last.checkpoint)


class TemperatureAnnealing(Callback):
    """Lowers the temperature of a router geometrically over training.

    At fraction p of the training it is ``start^(1 - p) · end^p``.
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
