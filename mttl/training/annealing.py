"""A callback that lowers the temperature of a router's draws during training."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mttl.routing.task.categorical import CategoricalRouter
from mttl.routing.task.polytropon import PolytroponRouter


class TemperatureAnnealing(Callback):
    """Lowers the temperature of a router's draws along a geometric path over training.

    At fraction p of the way from the first step to the last it is ``start^(1 - p) · end^p``.

    Args:
        start: Temperature at the first step.
        end: Temperature at the last.
    """

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = end

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        """Set the temperature of the coming step."""
        router: PolytroponRouter | CategoricalRouter = pl_module.model.router  # type: ignore[union-attr]
        last_step = trainer.estimated_stepping_batches - 1
        progress = min(1.0, trainer.global_step / max(1, last_step))
        router.temperature.fill_(self.start ** (1 - progress) * self.end**progress)
