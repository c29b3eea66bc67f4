"""Checkpoints on disk, which are written whole or not at all."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO

from mttl.checkpoints.whole_tensors import whole
from mttl.io.errors import DivergedError
from mttl.io.files import atomic_path

USELESS = "the weights are useless from here on"
TRAINING = (
    "The last checkpoint is kept; lower optim.lr, or set trainer.gradient_clip_val, and start "
    "again or continue with --resume"
)
ADAPTATION = "Lower adapt.lr and adapt.router_lr, or set adapt.gradient_clip_val"


class CheckpointFile(TorchCheckpointIO):
    """Writes checkpoints so that a kill or a full disk leaves the old file or the new one.

    Lightning writes to the folder of temporary files; if that is on another file system, it then
    copies over the only good checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint."""
        with atomic_path(path) as temporary:
            torch.save(checkpoint, temporary)


def check_weights(module: pl.LightningModule, step: int, advice: str = TRAINING) -> None:
    """Refuse to keep weights that are not finite, or whose squares, which norms take, are not.

    Raises:
        DivergedError: If a trained weight is NaN, infinite, or beyond 1.8e19.
    """
    for name, value in module.named_parameters():
        if value.requires_grad and not whole(value.float().square().isfinite().all()):
            raise not_finite(f"'{name}' holds numbers that are not finite or huge", step, advice)


def not_finite(what: str, step: int, advice: str = TRAINING) -> DivergedError:
    """Return the error of a training that has diverged."""
    return DivergedError(f"{what} at step {step}: {USELESS}. {advice}")
