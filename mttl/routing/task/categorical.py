"""Routers that choose one skill: by the Gumbel-softmax, or by a score-function estimator."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mttl.plugins.part_settings import NonNegative, Positive
from mttl.routing.task.task_router import TaskRouter, TaskRows, uniform


class CategoricalRouter(TaskRouter):
    r"""Samples one skill per example from a learned distribution of its task.

    In training, with Gumbel noise :math:`\gamma` and temperature :math:`\tau`,
    :math:`w = \mathrm{softmax}((z_t + \gamma) / \tau)`; in evaluation
    :math:`w = \mathrm{softmax}(z_t)`. With ``straight_through`` both are rounded to the skill with
    the largest weight, and gradients are those of the soft weights.

    Args:
        straight_through: True: the forward pass uses one skill; false: a mixture.
        temperature: Temperature of the Gumbel-softmax; see ``final_temperature``.
        final_temperature: Temperature at the end of training, if it is annealed.
        init_scale: Scale of the logits' initialisation, U(-init_scale, init_scale).

    References:
        Jang, Gu and Poole, *Categorical Reparameterization with Gumbel-Softmax*, ICLR 2017,
        arXiv:1611.01144.
    """

    lacks: ClassVar = {
        "weighs_experts": (
            "straight_through",
            "it allows one expert per task; set router.kind: polytropon, or moe.task_prior: none",
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
        self.straight_through, self.final_temperature = straight_through, final_temperature
        self.init_scale = init_scale
        self.logits = uniform(init_scale, n_groups, n_tasks, n_heads, n_skills)
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        logits = self.logits.index_select(1, task_ids)
        if self.training:
            return self._rounded(functional.gumbel_softmax(logits, self.temperature))  # type: ignore[arg-type]
        return self._rounded(logits.softmax(-1))

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        return self.logits.softmax(-1)

    def _rounded(self, soft: Float[Tensor, "G N H K"]) -> Float[Tensor, "G N H K"]:
        if not self.straight_through:
            return soft
        chosen = functional.one_hot(soft.argmax(-1), self.n_skills).to(soft.dtype)
        # The brackets make the sum exactly 1 or 0.
        return chosen + (soft - soft.detach())


# Approximate number of a task's examples in its running mean loss.
WINDOW = 100


class ScoreFunctionRouter(CategoricalRouter):
    r"""Samples one skill per example and learns from the example's loss (REINFORCE).

    The sample :math:`k \sim \mathrm{softmax}(z_t)` has no gradient. The score-function estimator
    gives the gradient of the expected loss,
    :math:`\nabla_z E[\ell_i] = E[(\ell_i - b_i) \nabla_z \log p(k_i \mid t)]`, with the joint
    log-probability of all groups and heads. The baseline :math:`b_i` leaves example i out, so the
    estimate is unbiased: it is the mean loss of the task's other examples in the batch and of about
    a hundred earlier ones; if there are none, that of the batch's other examples. In evaluation a
    task uses its most probable skill.

    Args:
        entropy: Weight in the loss of the negative entropy of the choices, a mean over groups and
            heads; it encourages exploration.

    References:
        Kool, van Hoof and Welling, *Buy 4 REINFORCE Samples, Get a Baseline for Free!*, ICLR 2019
        workshop on Deep Reinforcement Learning Meets Structured Prediction (the leave-one-out
        baseline, there over several samples for one input). Williams, *Simple Statistical
        Gradient-Following Algorithms for Connectionist Reinforcement Learning*, Machine Learning 8,
        1992. Rosenbaum, Klinger and Riemer, *Routing Networks: Adaptive Selection of Non-linear
        Functions for Multi-Task Learning*, ICLR 2018, arXiv:1711.01239.
    """

    lacks: ClassVar = {
        "policies": "it learns from the losses of text examples; set router.kind: categorical",
        "packs": "it learns from the loss of each example; remove data.packed_length",
        "shards": "it learns from the loss of each example; set trainer.strategy: ddp",
        "weighs_experts": "it allows one expert per task; set moe.task_prior: none",
    }
    task_rows: ClassVar = {
        **CategoricalRouter.task_rows,
        "mean_losses": TaskRows(axis=0),
        "n_seen": TaskRows(axis=0),
    }
    mean_losses: Tensor
    n_seen: Tensor

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        entropy: NonNegative = 0.0,
        init_scale: NonNegative = 1e-3,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills, init_scale=init_scale)
        self.entropy = entropy
        self.register_buffer("mean_losses", torch.zeros(n_tasks))
        self.register_buffer("n_seen", torch.zeros(n_tasks))

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        logits = self.logits.detach().index_select(1, task_ids)
        if not self.training:
            return self._rounded(logits.softmax(-1))
        chances = logits.softmax(-1)
        drawn = torch.multinomial(chances.flatten(0, -2), 1).view(chances.shape[:-1])
        return functional.one_hot(drawn, self.n_skills).to(logits.dtype)

    def choice_loss(
        self,
        task_ids: Int[Tensor, "B"],
        weights: Float[Tensor, "G B H K"],
        losses: Float[Tensor, "B"],
    ) -> Float[Tensor, "B"]:
        """Return losses whose mean has the gradient of the expected loss of the examples."""
        losses = losses.detach().to(self.mean_losses.dtype)
        advantages = losses - self._baselines(task_ids, losses)
        log_chances = self.logits.index_select(1, task_ids).log_softmax(-1)
        chosen = (log_chances * weights).sum((0, 2, 3))
        loss = advantages.to(chosen.dtype) * chosen
        if self.entropy:
            loss = loss + self.entropy * (log_chances.exp() * log_chances).sum(-1).mean((0, 2))
        return loss

    @torch.no_grad()
    def _baselines(
        self, task_ids: Int[Tensor, "B"], losses: Float[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """Return the leave-one-out baseline of each example, and update the mean losses."""
        counts = torch.zeros_like(self.n_seen).index_add_(0, task_ids, torch.ones_like(losses))
        sums = torch.zeros_like(self.n_seen).index_add_(0, task_ids, losses)
        past = self.n_seen.clamp_max(WINDOW)
        others = (past + counts).index_select(0, task_ids) - 1
        total = (past * self.mean_losses + sums).index_select(0, task_ids) - losses
        elsewhere = (losses.sum() - losses) / max(len(losses) - 1, 1)
        expected = torch.where(others > 0, total / others.clamp_min(1), elsewhere)
        self.n_seen += counts
        rate = (counts / self.n_seen.clamp_min(1)).maximum(counts / WINDOW).clamp_max(1)
        self.mean_losses += rate * (sums / counts.clamp_min(1) - self.mean_losses)
        return expected
