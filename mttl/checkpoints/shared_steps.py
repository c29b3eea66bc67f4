"""A callback for steps that several processes share: a run may go on with another number of them.

How many batches make up an optimizer step depends on the number of processes, and Lightning counts
batches. So what it counts is translated where a checkpoint is loaded, and validations begin when a
step is over.
"""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

PROGRESS = "epoch_loop.batch_progress"


class SharedSteps(Callback):
    """Keeps counts of batches whole steps, for any number of batches per step."""

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note how many batches a step has."""
        checkpoint["batches_per_step"] = trainer.accumulate_grad_batches

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Count the batches that the steps would have had here; a part of a step is none."""
        there, here = checkpoint.get("batches_per_step", 1), trainer.accumulate_grad_batches
        progress = checkpoint["loops"]["fit_loop"][PROGRESS]
        for counts in (progress["total"], progress["current"]):
            for name, count in counts.items():
                counts[name] = count // there * here

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let a part of an epoch, after which there is a validation, be whole steps."""
        every, n_parts = trainer.val_check_batch, trainer.accumulate_grad_batches
        if isinstance(every, int):
            trainer.val_check_batch = max(n_parts, every // n_parts * n_parts)
