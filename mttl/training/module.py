"""The Lightning module that text and policies share: optimizer, checkpoints and random states."""

import math
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from mttl.config.optim_schema import Optim
from mttl.errors import CheckpointError, ConfigError
from mttl.training.optim import build_optimizer, build_schedule


class ResumableModule(pl.LightningModule):
    """Optimizes a model by role; its checkpoints continue a run bit for bit.

    A checkpoint holds trained parameters, buffers and the random states. Frozen weights are not in
    it: whoever resumes builds the same model again.

    Args:
        model: Its parts carry roles.
        optim: Optimizer, learning rates and schedule.
    """

    def __init__(self, model: nn.Module, optim: Optim) -> None:
        super().__init__()
        self.model = model
        self.optim = optim
        self._random_state: Tensor | None = None
        self._device_random_state: Tensor | None = None
        # Frozen weights are not in the checkpoint; `on_load_checkpoint` checks the rest.
        self.strict_loading = False

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimizer with one group per role, and its schedule by step.

        Raises:
            ConfigError: If nothing bounds the number of steps.
        """
        mixed = str(self.trainer.precision).endswith("mixed")
        optimizer = build_optimizer(self.optim, self.model, fused=not mixed)
        total_steps = self.trainer.estimated_stepping_batches
        if math.isinf(total_steps):
            raise ConfigError(
                "section trainer: max_time alone does not say how many steps there will be, which "
                "the learning rates' schedule needs; set max_steps or max_epochs too"
            )
        scheduler = build_schedule(self.optim, optimizer, int(total_steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def load_weights(self, checkpoint: Path) -> int:
        """Take the trained weights of a checkpoint, and nothing else of it; return its step."""
        state = torch.load(checkpoint, map_location=self.device, weights_only=False)
        self.on_load_checkpoint(state)
        self.load_state_dict(state["state_dict"], strict=False)
        self._random_state = self._device_random_state = None
        return int(state["global_step"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leave the frozen weights out, and keep the random states."""
        kept = self._kept(checkpoint["state_dict"])
        checkpoint["state_dict"] = {name: checkpoint["state_dict"][name] for name in kept}
        checkpoint["random_state"] = torch.get_rng_state()
        if self.device.type == "cuda":
            checkpoint["device_random_state"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that nothing that training changes is missing, and remember the random states.

        Raises:
            CheckpointError: If a trained tensor is missing.
        """
        missing = sorted(set(self._kept(self.state_dict())) - set(checkpoint["state_dict"]))
        if missing:
            raise CheckpointError(
                f"the checkpoint lacks {len(missing)} trained tensors, first {missing[0]}; it was "
                "made by a run with other settings"
            )
        self._random_state = checkpoint.get("random_state")
        self._device_random_state = checkpoint.get("device_random_state")

    def on_train_start(self) -> None:
        """After a resume, continue the streams of random numbers where they stopped.

        Several processes start from one seed: each gets a stream of its own, or all would draw the
        same noise for different rows.
        """
        if self.trainer.world_size > 1:
            past = self.trainer.world_size * self.trainer.global_step
            torch.manual_seed(torch.initial_seed() + past + self.global_rank)
        elif self._random_state is not None:
            torch.set_rng_state(self._random_state.cpu())
            if self._device_random_state is not None and self.device.type == "cuda":
                torch.cuda.set_rng_state(self._device_random_state.cpu(), self.device)
        self._random_state = self._device_random_state = None

    def _kept(self, state: dict[str, Tensor]) -> list[str]:
        """Return the names of what training may change: all but frozen parameters."""
        # Tied weights stand in the state under each of their names.
        parameters = self.named_parameters(remove_duplicate=False)
        frozen = {name for name, value in parameters if not value.requires_grad}
        return [name for name in state if name not in frozen]
