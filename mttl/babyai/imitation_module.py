"""The Lightning module for policies that learn many levels at once from demonstrations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mttl.babyai.level_demonstrations import DemonstrationBatch
from mttl.babyai.policy_module import PolicyModule
from mttl.babyai.rl.imitation import imitation_loss
from mttl.config.optim_schema import Optim
from mttl.skills.composed.composed_model import ComposedModel


class ImitationModule(PolicyModule):
    """Trains the policies of all levels to act as in demonstrations.

    A policy follows each demonstration from beginning to end with its own memory; gradients flow
    back a number of steps. All levels have the same weight, however long their demonstrations are.
    The critic learns nothing.
    """

    def __init__(
        self,
        model: ComposedModel,
        levels: Sequence[str],
        optim: Optim,
        *,
        recurrence: int,
        entropy_coef: float,
    ) -> None:
        super().__init__(model, levels, optim)
        self.recurrence = recurrence
        self.entropy_coef = entropy_coef

    def training_step(self, batch: DemonstrationBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch, with the router's prior."""
        logits, values = self._follow(batch)
        losses, statistics = zip(
            *(
                imitation_loss(*of_level, entropy_coef=self.entropy_coef)
                for of_level in zip(logits, batch.actions, batch.mask, strict=True)
            ),
            strict=True,
        )
        noted = {name: torch.stack([own[name] for own in statistics]) for name in statistics[0]}
        accuracies = zip(self.levels, noted["accuracy"], strict=True)
        # The critic is given gradients of zero: parameters without any stop several processes.
        loss = torch.stack(losses).mean() + 0.0 * values.sum()
        return self.total_loss(
            loss,
            {name: of_levels.mean() for name, of_levels in noted.items()}
            | {f"accuracy/{level}": accuracy for level, accuracy in accuracies},
        )

    def _follow(self, batch: DemonstrationBatch) -> tuple[Tensor, Tensor]:
        """Return logits (T, S, N, A) and values (T, S, N) of whole demonstrations."""
        n_tasks, n_steps, n_episodes = batch.actions.shape
        index = torch.arange(n_episodes, device=self.device).expand(n_tasks, n_steps, n_episodes)
        begins = torch.zeros_like(batch.mask)  # they begin with an empty memory
        memory = torch.zeros(
            n_tasks,
            n_episodes,
            2 * self.model.base.memory_size,  # type: ignore[operator]
            device=self.device,
        )
        parameters = self.model.task_parameters(self.task_ids)
        logits, values = [], []
        for parts in zip(
            *(field.split(self.recurrence, dim=1) for field in (batch.images, index, begins)),
            strict=True,
        ):
            images, own, none = parts
            out, value, memory = self.model.run(
                parameters, images, batch.missions, own, memory.detach(), none
            )
            logits.append(out.float())
            values.append(value.float())
        return torch.cat(logits, dim=1), torch.cat(values, dim=1)
