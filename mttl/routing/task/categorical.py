"""Hard choice: each task draws one skill, by the Gumbel-softmax."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mttl.plugins.part_settings import NonNegative, Positive
from mttl.routing.task.task_router import TaskRouter, TaskRows


class CategoricalRouter(TaskRouter):
    r"""Learns one distribution over skills per task, and gives each example one skill of it.

    While training, with Gumbel noise :math:`\gamma` and temperature :math:`\tau`,
    :math:`w = \mathrm{softmax}((z_t + \gamma) / \tau)`; in evaluation
    :math:`w = \mathrm{softmax}(z_t)`. With ``straight_through`` both are rounded to the skill with
    the largest weight, and gradients are those of the soft weights.

    Args:
        straight_through: One skill in the forward pass; else a mixture by the drawn weights.
        temperature: Temperature of the Gumbel-softmax. It is a buffer, so that it can be annealed.
        final_temperature: Anneal the temperature to this value over training.
        init_scale: Logits start in U(-init_scale, init_scale).

    References:
        Jang, Gu and Poole, *Categorical Reparameterization with Gumbel-Softmax*, ICLR 2017,
        arXiv:1611.01144.
    """

    lacks: ClassVar = {
        "weighs_experts": (
            "straight_through",
            "it chooses one expert for a task; use a router that mixes",
        )
    }
    task_rows: ClassVar = {"logits": TaskRows(axis=1, unused=-30.0)}
    temperature: Tensor

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        straight_through: bool = True,
        temperature: Positive = 1.0,
        final_temperature: Positive | None = None,
        init_scale: NonNegative = 1e-3,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.straight_through = straight_through
        self.final_temperature = final_temperature
        self.init_scale = init_scale
        self.logits = nn.Parameter(
            torch.empty(n_groups, n_tasks, n_heads, n_skills).uniform_(-init_scale, init_scale)
        )
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the weights of each example; training draws them in every pass."""
        logits = self.logits.index_select(1, task_ids)
        if self.training:
            noise = -torch.empty_like(logits).exponential_().log()
            logits = (logits + noise) / self.temperature
        return self._rounded(logits.softmax(-1))

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        """Return how likely each task is to draw each skill."""
        return self.logits.softmax(-1)

    def _rounded(self, soft: Float[Tensor, "G N H K"]) -> Float[Tensor, "G N H K"]:
        if not self.straight_through:
            return soft
        chosen = functional.one_hot(soft.argmax(-1), self.n_skills).to(soft.dtype)
        # The brackets make the sum exact: 1 and 0 stay 1 and 0.
        return chosen + (soft - soft.detach())
