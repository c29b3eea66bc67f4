"""A callback that keeps the weights with the best score on the development rows."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from mttl.checkpoints.checkpoint_file import check_weights


class SaveBest(Checkpoint):
    """Saves the weights after a validation whose score is the best so far.

    Its state has no paths, so a moved run can be resumed.

    Args:
        checkpoint: File to write.
        monitor: Name of the score; larger is better.

    Attributes:
        score: Best score so far.
    """

    def __init__(self, checkpoint: Path, monitor: str = "val/score") -> None:
        self.checkpoint = checkpoint
        self.monitor = monitor
        self.score: float | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if this validation was the best one."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        score = float(trainer.callback_metrics[self.monitor])
        if self.score is None or score > self.score:
            self.score = score
            check_weights(pl_module, trainer.global_step)
            trainer.save_checkpoint(self.checkpoint, weights_only=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score."""
        score = None if self.score is None else torch.tensor(self.score)
        return {"best_model_score": score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the best score, if its weights still exist."""
        score = state_dict["best_model_score"]
        if score is not None and self.checkpoint.is_file():
            self.score = float(score)
