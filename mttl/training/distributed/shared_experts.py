"""Training with experts that are shared out among processes: the setting ``moe.parallel``."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import nn
from torch.optim import Optimizer

from mttl.moe.expert_parallel import (
    clip_gradients,
    gather_checkpoint,
    shard_checkpoint,
    shard_experts,
    shared_parameters,
)
from mttl.training.module import ResumableModule
from mttl.training.optim import ROLES, parameter_groups


class SharesExperts(ResumableModule):
    """A module whose checkpoints and norms of gradients are those of all experts together."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Gather the experts, and what the optimizer knows about them, into the first process."""
        super().on_save_checkpoint(checkpoint)
        gather_checkpoint(self, checkpoint, self._in_order())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take this process's share of the experts."""
        shard_checkpoint(self, checkpoint, self._in_order())
        super().on_load_checkpoint(checkpoint)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm over all processes, or they would scale common gradients apart."""
        if not gradient_clip_val or not shared_parameters(self):
            super().configure_gradient_clipping(
                optimizer, gradient_clip_val, gradient_clip_algorithm
            )
            return
        clip_gradients(self._in_order(), self, float(gradient_clip_val))

    def _in_order(self) -> list[nn.Parameter]:
        """Return the parameters as the optimizer numbers them."""
        if not shared_parameters(self):
            return []
        groups = parameter_groups(self.model, lr=dict.fromkeys(ROLES, 0.0), weight_decay=0.0)
        return [parameter for group in groups for parameter in group["params"]]


class ExpertSharing(Callback):
    """Shares the experts of the model out before data-parallel training wraps it."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Share the experts out, once."""
        if stage == "fit":
            shard_experts(pl_module)
