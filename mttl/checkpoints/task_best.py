"""Callback that keeps the best validated weights of each task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from mttl.checkpoints.run_callbacks import SaveBest, check_weights
from mttl.io.torch_file import load_torch


class SaveTaskBest(SaveBest):
    """Saves the slice of each task in the stacked parameters after its best validation so far.

    ``checkpoint`` combines slices of different steps. A task without validation rows keeps its
    last slice.
    """

    def __init__(self, checkpoint: Path, tasks: Sequence[str]) -> None:
        super().__init__(checkpoint)
        self.tasks = tasks
        self.scores = torch.full((len(tasks),), -torch.inf)
        self.steps = torch.zeros(len(tasks), dtype=torch.long)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the slices of the tasks whose score is their best so far."""
        self.n_validations += 1
        names = [f"val/{task}/score" for task in self.tasks]
        found = [float(trainer.callback_metrics.get(name, torch.inf)) for name in names]
        scores = torch.tensor(found).nan_to_num(0.0, posinf=torch.inf)
        better = (scores > self.scores) | scores.isinf()
        if not better.any():
            return
        check_weights(pl_module, trainer.global_step)
        kept = {}
        if self.score is not None and self.checkpoint.is_file():
            advice = "Delete it, and repeat the training command with --resume"
            kept = load_torch(self.checkpoint, advice)["state_dict"]
        self.scores[better], self.steps[better] = scores[better], trainer.global_step
        self.score = float(self.scores.mean())
        trained = {n: value for n, value in pl_module.named_parameters() if value.requires_grad}
        own = {name: value.detach().clone() for name, value in trained.items()}
        with torch.no_grad():
            for name, value in kept.items():
                if name in trained:
                    trained[name][~better] = value[~better].to(trained[name].device)
            trainer.save_checkpoint(self.checkpoint, weights_only=True)
            for name, value in own.items():
                trained[name].copy_(value)

    def kept(self, step: int) -> str:
        """Return the kept steps with their tasks."""
        pairs = zip(self.tasks, self.steps.tolist(), strict=True)
        steps = ", ".join(f"{task} {own}" for task, own in pairs)
        return f"Kept each task at its best of {self.n_validations} validations, by step: {steps}"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scores": self.scores, "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the scores, if their weights still exist."""
        super().load_state_dict(state_dict)
        if self.score is not None:
            self.scores, self.steps = state_dict["scores"].clone(), state_dict["steps"].clone()
