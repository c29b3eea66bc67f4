"""Routers with fixed weights, learned coefficients, and AdaMix's random router."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mttl.io.errors import require_one_of
from mttl.plugins.part_settings import NonNegative, ReadFrom
from mttl.routing.task.task_router import STARTS, SignedRouter, TaskRouter, TaskRows

BLIND = {
    "tells_tasks_apart": "this router has the same weights for all tasks",
    "weighs_experts": "it has equal weights for all tasks; set router.kind: polytropon",
}


class FixedRouter(TaskRouter):
    """Mixes by a given matrix, the same in every group and head.

    Args:
        weights: Mixing weights, shape (T, K); they are not normalised.
    """

    draws = False
    task_rows: ClassVar = {"weights": TaskRows(axis=0, unused=0.0)}
    weights: Tensor

    def __init__(self, weights: Float[Tensor, "T K"], n_groups: int, n_heads: int = 1) -> None:
        super().__init__(n_groups, weights.shape[0], n_heads, weights.shape[1])
        self.register_buffer("weights", weights.clone())

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        return self._in_all_groups(self.weights.index_select(0, task_ids))

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        return self._in_all_groups((self.weights > 0).to(self.weights.dtype))

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "FixedRouter":
        """Return a router for new tasks: the mean weights, or equal weights (``"fresh"``)."""
        require_one_of(STARTS, init=init)
        row = self.weights.mean(dim=0, keepdim=True)
        if init == "fresh":
            row = torch.full_like(row, 1 / self.n_skills)
        return FixedRouter(row.repeat(n_tasks, 1), self.n_groups, self.n_heads)

    def _in_all_groups(self, rows: Float[Tensor, "N K"]) -> Float[Tensor, "G N H K"]:
        shape = (self.n_groups, rows.shape[0], self.n_heads, self.n_skills)
        return rows[None, :, None, :].expand(shape)


class SharedRouter(FixedRouter):
    """Uses one skill for all tasks; needs `skills.n_skills: 1`."""

    lacks: ClassVar = BLIND

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int = 1, n_skills: int = 1) -> None:
        super().__init__(torch.ones(n_tasks, 1), n_groups, n_heads)


class NoRouter(SharedRouter):
    """Routes no tasks, only tokens; needs `skills.kind: none`."""

    lacks: ClassVar = {
        "policies": "it gives skills no weights; set router.kind: shared and skills.n_skills: 1"
    }


class PrivateRouter(FixedRouter):
    """Uses one skill per task; needs `skills.n_skills: per_task`.

    References:
        Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 2.5.
    """

    lacks: ClassVar = {"gives_zeros": ""}

    def __init__(
        self, n_groups: int, n_tasks: int, n_heads: int = 1, n_skills: int | None = None
    ) -> None:
        super().__init__(torch.eye(n_tasks), n_groups, n_heads)


class AverageRouter(FixedRouter):
    """Mixes all skills with equal weights; for a trained inventory this is MHR-μ.

    References:
        Caccia, Ponti, Su, Pereira, Le Roux and Sordoni, arXiv:2211.03831.
    """

    lacks: ClassVar = BLIND

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int) -> None:
        super().__init__(torch.full((n_tasks, n_skills), 1 / n_skills), n_groups, n_heads)


class ExpertRouter(FixedRouter):
    """Mixes by an expert's matrix of tasks by skills, whose rows are normalised.

    Args:
        matrix: CSV file with a header `task,<skills>` and a row of weights per task; by default
            `data.expert_matrix`.

    References:
        Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 2.5.
    """

    lacks: ClassVar = {"gives_zeros": ""}

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        matrix: Annotated[Tensor, ReadFrom(str)],
    ) -> None:
        super().__init__(matrix / matrix.sum(dim=1, keepdim=True), n_groups, n_heads)


class GivenRows(TaskRouter):
    """Mixes by given weights, a matrix for each group and head."""

    draws = False
    task_rows: ClassVar = {"rows": TaskRows(axis=1, unused=0.0)}
    rows: Tensor

    def __init__(self, rows: Float[Tensor, "G T H K"]) -> None:
        super().__init__(*rows.shape)
        self.register_buffer("rows", rows.detach().clone())

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        return self.rows.index_select(1, task_ids)


class CoefficientRouter(SignedRouter):
    """Mixes by unconstrained learned weights, which start at 1 / K.

    For frozen skills these are the coefficients of LoRA soups (CAT): one per skill and group of
    layers, with ``mix="outputs"`` or ``"deltas"``.

    References:
        Prabhakar, Li, Narasimhan, Kakade, Malach and Jelassi, *LoRA Soups: Merging LoRAs for
        Practical Skill Composition Tasks*, COLING 2025, arXiv:2410.13025.
    """

    draws = False
    task_rows: ClassVar = {"rows": TaskRows(axis=1, unused=0.0)}

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.rows = nn.Parameter(torch.full((n_groups, n_tasks, n_heads, n_skills), 1 / n_skills))

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        return self.rows.index_select(1, task_ids)


class RandomRouter(FixedRouter):
    r"""Draws one skill per training step for all tasks, and averages skills in evaluation (AdaMix).

    Each routed group has one sample for the whole batch. In evaluation the K skills have equal
    weights: with ``mix="factors"`` this is the averaged member that AdaMix keeps. The consistency
    loss is half of :math:`\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p)` for the predictions p and q of
    two passes with different samples; only the first pass learns from the labels.

    AdaMix samples the down- and up-projection of an adapter separately; here a skill is sampled as
    a whole. Averages need members with identical initialisation: set ``skills.identical_init``.

    Args:
        consistency: Weight in the loss of the divergence of two passes; 0 computes one pass.

    References:
        Wang, Agarwal, Mukherjee, Liu, Gao, Awadallah and Gao, *AdaMix: Mixture-of-Adaptations for
        Parameter-efficient Model Tuning*, EMNLP 2022, arXiv:2205.12410.
    """

    lacks: ClassVar = {
        "policies": ("consistency", "its loss compares tokens; set router.consistency: 0"),
        "shards": ("consistency", "it needs two forward passes; set router.consistency: 0"),
        **BLIND,
    }
    draws: ClassVar[bool] = True

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        consistency: NonNegative = 1.0,
    ) -> None:
        super().__init__(torch.full((n_tasks, n_skills), 1 / n_skills), n_groups, n_heads)
        self.consistency = consistency

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        if not self.training:
            return super().forward(task_ids)
        rows = self.weights.index_select(0, task_ids).cumsum(-1)
        # One sample for all rows, which may have weight 0 for some skills.
        drawn = torch.rand(self.n_groups, 1, 1, device=rows.device) * rows[None, :, -1:]
        chosen = functional.one_hot((drawn >= rows).sum(-1), self.n_skills).to(rows.dtype)
        return chosen.unsqueeze(2).expand(-1, -1, self.n_heads, -1)

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "RandomRouter":
        router = self.rebuilt(n_tasks=n_tasks)
        assert isinstance(router, RandomRouter)
        router.weights = super().for_new_tasks(n_tasks, init=init).weights
        return router
