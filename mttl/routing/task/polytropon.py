"""Polytropon: a soft partition of tasks over skills; with several heads, multi-head routing."""

import math
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.plugins.part_settings import Fraction, NonNegative, OneOf, Positive
from mttl.routing.task.priors import NO_PRIOR, RoutingPrior, straight_through
from mttl.routing.task.task_router import TaskRouter, TaskRows, initial_rows

# As in the published code: keeps a row without any active skill finite.
SMALLEST_SUM = 1e-12
# Keeps the two logarithms of the noise finite in float32.
SMALLEST_UNIFORM = 1e-6


class PolytroponRouter(TaskRouter):
    r"""Learns a soft partition of tasks over skills; with several heads, multi-head routing.

    Each cell of a matrix Z of tasks by skills is a Bernoulli variable. While training each example
    draws :math:`\hat z` from the relaxed Bernoulli with the logits of its task; in evaluation
    :math:`\hat z = \sigma(z)`. With ``straight_through`` it rounds :math:`\hat z` to 0 or 1 in
    both. The mixing weights are the row, normalised: :math:`w_k = \hat z_k / \sum_j \hat z_j`; a
    task that uses no skill has the weights 0. With one head this is Polytropon; with H heads every
    block of features has a row of its own (multi-head routing).

    Args:
        relaxed: Draw from the relaxed Bernoulli while training; else use the probabilities.
        straight_through: Round draws and probabilities to 0 or 1, in training and in evaluation.
        temperature: Temperature of the relaxed Bernoulli. It is a buffer, so that it can be
            annealed.
        final_temperature: Anneal the temperature to this value over training.
        init_scale: Logits start in U(-init_scale, init_scale): all probabilities near one half.
        normalise: Divide by the row's sum, or multiply by sqrt(heads / skills).
        shared_skill: The last skill is on for every task.
        logit_dropout: Probability of dropping a logit to 0 while training.
        prior: What the loss says about the matrix.

    Raises:
        ValueError: If a shared skill would be the only one.

    References:
        Ponti, Sordoni, Bengio and Reddy, *Combining Parameter-efficient Modules for Task-level
        Generalisation*, EACL 2023, arXiv:2202.13914. Caccia, Ponti, Su, Pereira, Le Roux and
        Sordoni, *Multi-Head Adapter Routing for Cross-Task Generalization*, NeurIPS 2023,
        arXiv:2211.03831.
    """

    lacks: ClassVar = {
        "weighs_experts": (
            "straight_through and not shared_skill",
            "it may leave a task no expert; set it to false, or router.shared_skill: true",
        )
    }
    refuses: ClassVar = {
        f"{name} and {name} != 1.0 and not relaxed": f"{name} ({{{name}:g}}) needs relaxed: true; "
        "otherwise nothing is drawn. Leave it out"
        for name in ("temperature", "final_temperature")
    }
    # The probability of -30 is 1e-13: less than what single precision tells from 0 in a sum.
    task_rows: ClassVar = {"logits": TaskRows(axis=1, unused=-30.0)}
    temperature: Tensor

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        relaxed: bool = True,
        straight_through: bool = False,
        temperature: Positive = 1.0,
        final_temperature: Positive | None = None,
        init_scale: NonNegative = 1e-3,
        normalise: Annotated[str, OneOf("sum", "average_correction")] = "sum",
        shared_skill: bool = False,
        logit_dropout: Fraction = 0.0,
        prior: RoutingPrior = NO_PRIOR,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        if shared_skill and n_skills < 2:
            raise ValueError(f"shared_skill needs n_skills ({n_skills}) to be at least 2")
        self.relaxed, self.straight_through = relaxed, straight_through
        self.final_temperature, self.init_scale = final_temperature, init_scale
        self.normalise, self.shared_skill = normalise, shared_skill
        self.logit_dropout, self.prior = logit_dropout, prior
        # A skill that is always on has no logit: a parameter without a gradient would break DDP.
        n_routed = n_skills - 1 if shared_skill else n_skills
        self.logits = nn.Parameter(
            torch.empty(n_groups, n_tasks, n_heads, n_routed).uniform_(-init_scale, init_scale)
        )
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    def task_logits(self, task_ids: Int[Tensor, "N"] | None = None) -> Float[Tensor, "G N H Q"]:
        """Return the logits of some tasks, of all by default."""
        return self.logits if task_ids is None else self.logits.index_select(1, task_ids)

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        active = self.draw(task_ids)
        if self.normalise == "average_correction":
            return active * math.sqrt(self.n_heads / self.n_skills)
        total = active.sum(dim=-1, keepdim=True)
        # A row that draws no skill stays zero, and its gradient small.
        return active / torch.where(total > SMALLEST_SUM, total, 1.0)

    def draw(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return how much each example uses each skill, before any normalisation."""
        logits = self.task_logits(task_ids)
        logits = nn.functional.dropout(logits, self.logit_dropout, training=self.training)
        if self.training and self.relaxed:
            active = relaxed_bernoulli(logits, self.temperature)
        else:
            active = logits.sigmoid()
        return self._use(active)

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        return self._use(self.task_logits().sigmoid())

    def prior_loss(self) -> Float[Tensor, ""]:
        return self.prior(self.task_logits().sigmoid())

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "PolytroponRouter":
        return self.with_rows(initial_rows(self.task_logits(), n_tasks, init, self.init_scale))

    def with_rows(self, rows: Float[Tensor, "G N H Q"]) -> "PolytroponRouter":
        """Return a router with the same settings whose tasks have given logits, a row each."""
        own: dict[str, Any] = self._arguments(PolytroponRouter)
        own["n_tasks"] = rows.shape[1]
        router = PolytroponRouter(**own)
        router.to(self.logits.device, self.logits.dtype)
        with torch.no_grad():
            router.logits.copy_(rows)
        return router

    def _use(self, active: Float[Tensor, "G N H Q"]) -> Float[Tensor, "G N H K"]:
        """Round, if so set, and put the skill that is always on behind the others."""
        if self.straight_through:
            active = straight_through(active)
        if not self.shared_skill:
            return active
        return torch.cat([active, torch.ones_like(active[..., :1])], dim=-1)


def relaxed_bernoulli(
    logits: Float[Tensor, "*shape"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, "*shape"]:
    """Draw from the relaxed Bernoulli (binary concrete) distribution.

    Computes ``z = sigmoid((logits + log u - log(1 - u)) / temperature)`` with ``u ~ U(0, 1)``. As
    the temperature falls to 0, ``z`` becomes a Bernoulli draw with probability ``sigmoid(logits)``.

    References:
        Maddison, Mnih and Teh, *The Concrete Distribution*, ICLR 2017, arXiv:1611.00712. Jang, Gu
        and Poole, *Categorical Reparameterization with Gumbel-Softmax*, ICLR 2017,
        arXiv:1611.01144.
    """
    uniform = torch.rand_like(logits, dtype=torch.float32)
    uniform = uniform.clamp(SMALLEST_UNIFORM, 1 - SMALLEST_UNIFORM)
    noise = uniform.log() - (-uniform).log1p()
    return torch.sigmoid((logits + noise) / temperature).to(logits.dtype)
