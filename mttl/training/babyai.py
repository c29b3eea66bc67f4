"""The Lightning module for policies that learn many levels at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor

from mttl.errors import CheckpointError, TrainingError
from mttl.rl.ppo import ppo_loss
from mttl.rl.sequences import Sequences
from mttl.skills.compose import ComposedModel
from mttl.training.optim import Optimization


@dataclass(frozen=True)
class LossWeights:
    """The terms of the loss; see `mttl.rl.ppo.ppo_loss`.

    Args:
        clip: How far ratio and values may move.
        value_coef: Weight of the values' loss.
        entropy_coef: Weight of the entropy.
    """

    clip: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01


class BabyAIModule(pl.LightningModule):
    """Trains the policies of all levels on minibatches of rollouts.

    Args:
        model: Common parameters, skills and router; task t is level t.
        levels: Names of the levels in id order.
        optimization: Optimizer, learning rates and schedule.
        weights: The terms of the loss.
    """

    task_ids: Tensor

    def __init__(
        self,
        model: ComposedModel,
        levels: Sequence[str],
        optimization: Optimization,
        weights: LossWeights | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.levels = tuple(levels)
        self.optimization = optimization
        self.weights = weights or LossWeights()
        self.register_buffer("task_ids", torch.arange(len(self.levels)), persistent=False)
        # Sums over the minibatches of a rollout: logging each of them costs more than a step.
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self._random_state: Tensor | None = None

    def training_step(self, batch: Sequences, batch_idx: int) -> Tensor:
        """Return the loss of a minibatch, with the router's prior.

        Raises:
            TrainingError: If the loss is no finite number.
        """
        logits, values, _ = self.model(self.task_ids, *batch.inputs)
        loss, statistics = ppo_loss(
            logits.float(),
            values.float(),
            batch.actions,
            batch.log_probs,
            batch.values,
            batch.advantages,
            batch.returns,
            clip=self.weights.clip,
            value_coef=self.weights.value_coef,
            entropy_coef=self.weights.entropy_coef,
        )
        prior = self.model.router.prior_loss().to(loss.device)
        self._check_finite(loss)
        statistics["loss"] = loss.detach()
        if prior.requires_grad:
            statistics["prior"] = prior.detach()
        for name, value in statistics.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._count += 1
        return loss + prior

    def _check_finite(self, loss: Tensor) -> None:
        # With several processes all see it at the latest one rollout on; gradients are shared.
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss.item()} at step {self.global_step}: the weights are useless "
                "from here on. The last checkpoint is kept; lower optim.lr, or set "
                "trainer.gradient_clip_val, and start anew or continue with --resume"
            )

    def on_train_epoch_end(self) -> None:
        """Log the means over a rollout's minibatches."""
        values = {f"train/{name}": value / self._count for name, value in self._sums.items()}
        if values:
            self.log_dict(values, sync_dist=True)
        self._sums, self._count = {}, 0

    def transfer_batch_to_device(
        self, batch: Sequences, device: torch.device, dataloader_idx: int
    ) -> Sequences:
        """Return the batch: rollouts are made where the policy is."""
        return batch

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
