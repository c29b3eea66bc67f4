"""The weights that did best on the development rows."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from mttl.checkpoints.checkpoint_file import check_weights


class SaveBest(Checkpoint):
    """Saves the weights after a validation whose score is the best so far.

    Nothing in its state depends on where the run is: a moved folder goes on.

    Args:
        checkpoint: Where to save.
        monitor: Name of the score; larger is better.

    Attributes:
        score: The best one so far.
    """

    def __init__(self, checkpoint: Path, monitor: str = "val/score") -> None:
        self.checkpoint = checkpoint
        self.monitor = monitor
        self.score: float | None = None

    @property
    def state_key(self) -> str:
        """The name of its state: that of Lightning's callback, which earlier runs were saved by."""
        settings = {
            **{"monitor": self.monitor, "mode": "max", "every_n_train_steps": 0},
            **{"every_n_epochs": 1, "train_time_interval": None},
        }
        return f"ModelCheckpoint{settings!r}"

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
        """Go on from the best score, if the weights that had it are there still."""
        score = state_dict["best_model_score"]
        if score is not None and self.checkpoint.is_file():
            self.score = float(score)
