"""Lightning modules for policies, which learn from rewards or from demonstrations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mttl.babyai.demonstration_loader import DemonstrationBatch
from mttl.babyai.rl.losses import imitation_loss, ppo_loss
from mttl.babyai.rl.sequences import EpisodeSequences
from mttl.checkpoints.run_callbacks import not_finite
from mttl.config.babyai_schema import Rl
from mttl.config.optim_schema import Optim
from mttl.skills.composed.composed_model import ComposedModel
from mttl.training.module import ResumableModule


class PolicyModule(ResumableModule):
    """The policies of all levels and the statistics of their losses, logged by epoch.

    A subclass computes the loss of a batch in ``training_step`` and returns `total_loss` of it.
    """

    model: ComposedModel
    task_ids: Tensor

    def __init__(self, model: ComposedModel, levels: Sequence[str], optim: Optim, rl: Rl) -> None:
        super().__init__(model, optim)
        self.levels, self.rl = tuple(levels), rl
        self.register_buffer("task_ids", torch.arange(len(self.levels)), persistent=False)
        # Sums over the batches of an epoch: logging each of them costs more than a step.
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def total_loss(self, loss: Tensor, statistics: Mapping[str, Tensor]) -> Tensor:
        """Return the loss with the router's prior, and note the statistics of the batch.

        Raises:
            TrainingError: If the loss is not finite.
        """
        # With several processes all see it at the latest one epoch on; gradients are shared.
        if not torch.isfinite(loss):
            raise not_finite(f"the loss is {loss.item()}", self.global_step)
        prior = self.model.router.prior_loss().to(loss.device)
        noted = {**statistics, "loss": loss.detach()}
        if prior.requires_grad:
            noted["prior"] = prior.detach()
        for name, value in noted.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._count += 1
        return loss + prior

    def means(self) -> dict[str, Tensor]:
        """Return the means of the statistics over the batches of this epoch so far."""
        return {name: value / self._count for name, value in self._sums.items()}

    def on_train_epoch_end(self) -> None:
        """Log the means over an epoch's batches."""
        values = {f"train/{name}": value for name, value in self.means().items()}
        if values:
            self.log_dict(values, sync_dist=True)
        self._sums, self._count = {}, 0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note the statistics of the epoch so far too."""
        super().on_save_checkpoint(checkpoint)
        sums = {name: value.cpu() for name, value in self._sums.items()}
        checkpoint["sums"] = sums, self._count

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the statistics of the checkpoint's epoch.

        Raises:
            CheckpointError: If a trained tensor is missing.
        """
        super().on_load_checkpoint(checkpoint)
        sums, self._count = checkpoint["sums"]
        self._sums = {name: value.to(self.device) for name, value in sums.items()}


class PpoModule(PolicyModule):
    """Trains the policies of all levels from rewards, on minibatches of rollouts."""

    def training_step(self, batch: EpisodeSequences, batch_idx: int) -> Tensor:
        """Return the loss of a minibatch, with the router's prior."""
        logits, values, _ = self.model(self.task_ids, *batch.inputs)
        loss, statistics = ppo_loss(
            logits.float(),
            values.float(),
            batch.actions,
            batch.log_probs,
            batch.values,
            batch.advantages,
            batch.returns,
            **self.rl.ppo.model_dump(include={"clip", "value_coef", "entropy_coef"}),
        )
        return self.total_loss(loss, statistics)


class ImitationModule(PolicyModule):
    """Trains the policies of all levels to act as in demonstrations.

    A policy follows each demonstration from beginning to end with its own memory; gradients flow
    back a number of steps. All levels have the same weight, however long their demonstrations are.
    The critic learns nothing.
    """

    def training_step(self, batch: DemonstrationBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch, with the router's prior."""
        logits, values = self._follow(batch)
        of_levels = zip(logits, batch.actions, batch.mask, strict=True)
        weight = self.rl.imitation.entropy_coef
        found = (imitation_loss(*own, entropy_coef=weight) for own in of_levels)
        losses, statistics = zip(*found, strict=True)
        noted = {name: torch.stack([own[name] for own in statistics]) for name in statistics[0]}
        means = {name: values_of.mean() for name, values_of in noted.items()}
        own = {f"accuracy/{level}": noted["accuracy"][n] for n, level in enumerate(self.levels)}
        # The critic is given gradients of zero: parameters without any stop several processes.
        return self.total_loss(torch.stack(losses).mean() + 0.0 * values.sum(), means | own)

    def _follow(self, batch: DemonstrationBatch) -> tuple[Tensor, Tensor]:
        """Return logits (T, S, N, A) and values (T, S, N) of whole demonstrations."""
        n_tasks, n_steps, n_episodes = batch.actions.shape
        index = torch.arange(n_episodes, device=self.device).expand(n_tasks, n_steps, n_episodes)
        begins = torch.zeros_like(batch.mask)  # they begin with an empty memory
        memory_size: Any = self.model.base.memory_size
        memory = torch.zeros(n_tasks, n_episodes, 2 * memory_size, device=self.device)
        parameters = self.model.task_parameters(self.task_ids)
        logits, values = [], []
        recurrence = self.rl.ppo.recurrence
        frames = (x.split(recurrence, dim=1) for x in (batch.images, index, begins))
        for images, own, none in zip(*frames, strict=True):
            out, value, memory = self.model.run(
                parameters, images, batch.missions, own, memory.detach(), none
            )
            logits.append(out.float())
            values.append(value.float())
        return torch.cat(logits, dim=1), torch.cat(values, dim=1)
