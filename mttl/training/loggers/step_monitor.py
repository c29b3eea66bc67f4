"""A callback that logs how training goes: rates, norms of gradients, and its speed."""

import math
import time
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.optim import Optimizer

from mttl.checkpoints.whole_tensors import whole
from mttl.training.loggers.show import experiment_loggers


class StepMonitor(Callback):
    """Logs learning rates and norms of gradients by role, before clipping, and tokens per second.

    ``metrics.csv`` has none of it: it is the same from start to start, and speed is not.

    Args:
        every_n_steps: Steps between two records.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._numbers: dict[str, float] = {}
        self._tokens: torch.Tensor | int = 0
        self._steps = 0  # fewer at the first record after a resume
        self._seconds = 0.0
        self._since = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._since = time.monotonic()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Count the step, and measure what it uses."""
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
        """Count the tokens of the batch, and log where it is time."""
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
        """Stop the clock."""
        self._seconds += time.monotonic() - self._since

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Go on."""
        self._since = time.monotonic()


def rates_and_norms(optimizer: Optimizer) -> dict[str, float]:
    """Return the learning rate and the norm of the gradients of every role."""
    numbers: dict[str, float] = {}
    squares: dict[str, float] = {}
    for group in optimizer.param_groups:
        role = group["name"].partition(" ")[0]
        numbers[f"lr/{role}"] = float(group["lr"])
        gradients = [p.grad for p in group["params"] if p.grad is not None]
        norm = float(whole(torch.nn.utils.get_total_norm(gradients))) if gradients else 0.0
        squares[role] = squares.get(role, 0.0) + norm**2
    return numbers | {f"grad_norm/{role}": math.sqrt(value) for role, value in squares.items()}
