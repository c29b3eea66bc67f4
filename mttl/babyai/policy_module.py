"""What the Lightning modules for policies share, whatever they learn from."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor

from mttl.errors import CheckpointError, TrainingError
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.optim import Optimization


class PolicyModule(pl.LightningModule):
    """The policies of all levels with their optimizer, what is logged, and what a resume needs.

    A subclass computes the loss of a batch in ``training_step`` and returns `total_loss` of it.

    Args:
        model: Common parameters, skills and router; task t is level t.
        levels: Names of the levels in id order.
        optimization: Optimizer, learning rates and schedule.
    """

    task_ids: Tensor

    def __init__(
        self, model: ComposedModel, levels: Sequence[str], optimization: Optimization
    ) -> None:
        super().__init__()
        self.model = model
        self.levels = tuple(levels)
        self.optimization = optimization
        self.register_buffer("task_ids", torch.arange(len(self.levels)), persistent=False)
        # Sums over the batches of an epoch: logging each of them costs more than a step.
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self._random_state: Tensor | None = None

    def total_loss(self, loss: Tensor, statistics: Mapping[str, Tensor]) -> Tensor:
        """Return the loss with the router's prior, and note the statistics of the batch.

        Raises:
            TrainingError: If the loss is no finite number.
        """
        self._check_finite(loss)
        prior = self.model.router.prior_loss().to(loss.device)
        noted = {**statistics, "loss": loss.detach()}
        if prior.requires_grad:
            noted["prior"] = prior.detach()
        for name, value in noted.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._count += 1
        return loss + prior

    def _check_finite(self, loss: Tensor) -> None:
        # With several processes all see it at the latest one epoch on; gradients are shared.
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss.item()} at step {self.global_step}: the weights are useless "
                "from here on. The last checkpoint is kept; lower optim.lr, or set "
                "trainer.gradient_clip_val, and start anew or continue with --resume"
            )

    def means(self) -> dict[str, Tensor]:
        """Return the means of the statistics over the batches of this epoch so far."""
        return {name: value / self._count for name, value in self._sums.items()}

    def on_train_epoch_end(self) -> None:
        """Log the means over an epoch's batches."""
        values = {f"train/{name}": value for name, value in self.means().items()}
        if values:
            self.log_dict(values, sync_dist=True)
        self._sums, self._count = {}, 0

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimizer with one group per role, and its schedule by step."""
        mixed = str(self.trainer.precision).endswith("mixed")
        optimizer = self.optimization.optimizer(self.model, fused=not mixed)
        total_steps = int(self.trainer.estimated_stepping_batches)
        scheduler = self.optimization.scheduler(optimizer, total_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the levels, and the random state."""
        checkpoint["levels"] = list(self.levels)
        checkpoint["random_state"] = torch.get_rng_state()
        checkpoint["sums"] = (
            {name: value.cpu() for name, value in self._sums.items()},
            self._count,
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of other levels, and go on with its random state.

        Raises:
            CheckpointError: If it was made with other levels.
        """
        if tuple(checkpoint["levels"]) != self.levels:
            raise CheckpointError(
                f"the checkpoint is of the levels {', '.join(checkpoint['levels'])}, not of "
                f"{', '.join(self.levels)}; resume the run with the levels it began with"
            )
        self._random_state = checkpoint["random_state"]
        sums, self._count = checkpoint["sums"]
        self._sums = {name: value.to(self.device) for name, value in sums.items()}

    def on_train_start(self) -> None:
        """After a resume, continue the stream of random numbers where it stopped."""
        if self._random_state is not None:
            torch.set_rng_state(self._random_state.cpu())
        self._random_state = None
