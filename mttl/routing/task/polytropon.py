"""Polytropon: a learned soft partition of tasks over skills, also with several heads (MHR)."""

import math
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.plugins.part_settings import Fraction, NonNegative, OneOf, Positive
from mttl.routing.task.priors import NO_PRIOR, RoutingPrior, straight_through
from mttl.routing.task.task_router import TaskRouter, TaskRows, initial_rows, uniform

# As in the published code; smaller sums are not divided by.
SMALLEST_SUM = 1e-12
# Keeps the logarithms of the noise finite in float32.
SMALLEST_UNIFORM = 1e-6


class PolytroponRouter(TaskRouter):
    r"""Learns a soft partition of tasks over skills; with several heads, multi-head routing.

    Each cell of a matrix Z of tasks by skills is a Bernoulli variable. In training each example
    samples :math:`\hat z` from the relaxed Bernoulli with the logits of its task; in evaluation
    :math:`\hat z = \sigma(z)`. With ``straight_through`` both are rounded to 0 or 1. The mixing
    weights are normalised, :math:`w_k = \hat z_k / \sum_j \hat z_j`; a task that uses no skill has
    the weights 0. With one head this is Polytropon; with H heads every block of features has its
    own routing weights (multi-head routing).

    Args:
        relaxed: True: sample the relaxed Bernoulli in training; false: use its probabilities.
        straight_through: Whether to round samples and probabilities to 0 or 1, also in evaluation.
        temperature: Temperature of the relaxed Bernoulli; see ``final_temperature``.
        final_temperature: Temperature at the end of training, if it is annealed.
        init_scale: Scale of the logits' initialisation, U(-init_scale, init_scale); small values
            give probabilities near one half.
        normalise: Divisor of the weights: their ``"sum"``, or sqrt(skills / heads)
            (``"average_correction"``).
        shared_skill: Whether every task uses the last skill.
        logit_dropout: Probability of dropping a logit to 0 in training.
        prior: Prior of the routing matrix, a term of the loss.

    Raises:
        ValueError: If ``shared_skill`` is set with a single skill.

    References:
        Ponti, Sordoni, Bengio and Reddy, *Combining Parameter-efficient Modules for Task-level
        Generalisation*, EACL 2023, arXiv:2202.13914. Caccia, Ponti, Su, Pereira, Le Roux and
        Sordoni, *Multi-Head Adapter Routing for Cross-Task Generalization*, NeurIPS 2023,
        arXiv:2211.03831.
    """

    lacks: ClassVar = {
        "weighs_experts": (
            "straight_through and not shared_skill",
            "a task may get no expert; set router.straight_through: false (or shared_skill: true)",
        )
    }
    refuses: ClassVar = {
        f"{name} and {name} != 1.0 and not relaxed": f"{name} ({{{name}:g}}) needs relaxed: true, "
        "since otherwise nothing is sampled. Remove it"
        for name in ("temperature", "final_temperature")
    }
    # The probability of -30 is 1e-13, below single precision's resolution in a sum.
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
        # A shared skill has no logit, since DDP fails for parameters without gradients.
        n_routed = n_skills - 1 if shared_skill else n_skills
        self.logits = uniform(init_scale, n_groups, n_tasks, n_heads, n_routed)
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    def task_logits(self, task_ids: Int[Tensor, "N"] | None = None) -> Float[Tensor, "G N H Q"]:
        """Return the logits of some tasks, of all by default."""
        return self.logits if task_ids is None else self.logits.index_select(1, task_ids)

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        active = self.draw(task_ids)
        if self.normalise == "average_correction":
            return active * math.sqrt(self.n_heads / self.n_skills)
        total = active.sum(dim=-1, keepdim=True)
        # A row without active skills stays zero, with small gradients.
        return active / torch.where(total > SMALLEST_SUM, total, 1.0)

    def draw(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the use of each skill by each example, before normalisation."""
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
        """Return a router with the same settings and given logits, a row per task."""
        own: dict[str, Any] = self._arguments(PolytroponRouter)
        own["n_tasks"] = rows.shape[1]
        router = PolytroponRouter(**own)
        router.to(self.logits.device, self.logits.dtype)
        with torch.no_grad():
            router.logits.copy_(rows)
        return router

    def _use(self, active: Float[Tensor, "G N H Q"]) -> Float[Tensor, "G N H K"]:
        """Round with ``straight_through``, and append a ``shared_skill``."""
        if self.straight_through:
            active = straight_through(active)
        if not self.shared_skill:
            return active
        return torch.cat([active, torch.ones_like(active[..., :1])], dim=-1)


def relaxed_bernoulli(
    logits: Float[Tensor, "*shape"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, "*shape"]:
    """Return a sample of the relaxed Bernoulli (binary concrete) distribution.

    It is ``z = sigmoid((logits + log u - log(1 - u)) / temperature)`` with ``u ~ U(0, 1)``. As the
    temperature falls to 0, ``z`` becomes a Bernoulli sample with probability ``sigmoid(logits)``.

    References:
        Maddison, Mnih and Teh, *The Concrete Distribution*, ICLR 2017, arXiv:1611.00712. Jang, Gu
        and Poole, *Categorical Reparameterization with Gumbel-Softmax*, ICLR 2017,
        arXiv:1611.01144.
    """
    uniform = torch.rand_like(logits, dtype=torch.float32)
    uniform = uniform.clamp(SMALLEST_UNIFORM, 1 - SMALLEST_UNIFORM)
    noise = uniform.log() - (-uniform).log1p()
    return torch.sigmoid((logits + noise) / temperature).to(logits.dtype)
