"""The Lightning module for policies that learn many levels at once from rewards."""

from collections.abc import Sequence

from torch import Tensor

from mttl.babyai.policy_module import PolicyModule
from mttl.babyai.rl.ppo import ppo_loss
from mttl.babyai.rl.sequences import EpisodeSequences
from mttl.config.babyai_schema import Ppo
from mttl.config.optim_schema import Optim
from mttl.skills.composed.composed_model import ComposedModel


class BabyAIModule(PolicyModule):
    """Trains the policies of all levels on minibatches of rollouts."""

    def __init__(
        self,
        model: ComposedModel,
        levels: Sequence[str],
        optim: Optim,
        weights: Ppo | None = None,
    ) -> None:
        super().__init__(model, levels, optim)
        self.weights = weights or Ppo()

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
            clip=self.weights.clip,
            value_coef=self.weights.value_coef,
            entropy_coef=self.weights.entropy_coef,
        )
        return self.total_loss(loss, statistics)
