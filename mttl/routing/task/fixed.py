"""Routers that learn nothing: the baselines, the average of an inventory, and given rows."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.io.errors import require_one_of
from mttl.plugins.part_settings import ReadFrom
from mttl.routing.task.task_router import STARTS, TaskRouter, TaskRows

BLIND = {
    "tells_tasks_apart": "all tasks have the same weights",
    "weighs_experts": "it does not tell tasks apart; use a router that does, as polytropon",
}


class FixedRouter(TaskRouter):
    """Mixes by a given matrix, the same in every group and head.

    Args:
        weights: Mixing weights, shape (T, K); rows are used as they are.
    """

    draws = False
    task_rows: ClassVar = {"weights": TaskRows(axis=0, unused=0.0)}
    weights: Tensor

    def __init__(self, weights: Float[Tensor, "T K"], n_groups: int, n_heads: int = 1) -> None:
        super().__init__(n_groups, weights.shape[0], n_heads, weights.shape[1])
        self.register_buffer("weights", weights.clone())

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the rows of the examples' tasks."""
        return self._in_all_groups(self.weights.index_select(0, task_ids))

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        """Return 1 for the skills that a task uses, else 0."""
        return self._in_all_groups((self.weights > 0).to(self.weights.dtype))

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "FixedRouter":
        """Return a router whose new tasks use the mean of the known rows, or all skills equally."""
        require_one_of(STARTS, init=init)
        row = self.weights.mean(dim=0, keepdim=True)
        if init == "fresh":
            row = torch.full_like(row, 1 / self.n_skills)
        return FixedRouter(row.repeat(n_tasks, 1), self.n_groups, self.n_heads)

    def _in_all_groups(self, rows: Float[Tensor, "N K"]) -> Float[Tensor, "G N H K"]:
        shape = (self.n_groups, rows.shape[0], self.n_heads, self.n_skills)
        return rows[None, :, None, :].expand(shape)


class SharedRouter(FixedRouter):
    """One skill for all tasks; needs `skills.n_skills: 1`."""

    lacks: ClassVar = BLIND

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int = 1, n_skills: int = 1) -> None:
        super().__init__(torch.ones(n_tasks, 1), n_groups, n_heads)


class NoRouter(SharedRouter):
    """No routing by task; needs `skills.kind: none`."""

    lacks: ClassVar = {
        "policies": "it gives skills no weights; use shared with n_skills: 1",
    }


class PrivateRouter(FixedRouter):
    """One skill per task; needs `skills.n_skills: per_task`."""

    lacks: ClassVar = {"gives_zeros": ""}

    def __init__(
        self, n_groups: int, n_tasks: int, n_heads: int = 1, n_skills: int | None = None
    ) -> None:
        super().__init__(torch.eye(n_tasks), n_groups, n_heads)


class AverageRouter(FixedRouter):
    """All skills with equal weights; of a trained inventory this is MHR-μ."""

    lacks: ClassVar = BLIND

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int) -> None:
        super().__init__(torch.full((n_tasks, n_skills), 1 / n_skills), n_groups, n_heads)


class ExpertRouter(FixedRouter):
    """A given matrix of tasks by skills.

    Args:
        matrix: CSV file: a header `task,<skills>` and a row of weights per task; by default
            `data.expert_matrix`.

    Raises:
        ValueError: If a weight is negative, or not finite, or a task has no skill.
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
        super().__init__(_shares(matrix), n_groups, n_heads)


def expert_router(assignment: Float[Tensor, "T K"], n_groups: int, n_heads: int = 1) -> FixedRouter:
    """Return the Expert baseline: a matrix known beforehand, its rows normalised to sum to 1.

    Raises:
        ValueError: If a weight is negative or not finite, or a task has no skill.
    """
    return FixedRouter(_shares(assignment), n_groups, n_heads)


class GivenRows(TaskRouter):
    """Mixes by given rows, a matrix for each group and head."""

    draws = False
    task_rows: ClassVar = {"rows": TaskRows(axis=1, unused=0.0)}
    rows: Tensor

    def __init__(self, rows: Float[Tensor, "G T H K"]) -> None:
        super().__init__(*rows.shape)
        self.register_buffer("rows", rows.detach().clone())

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the rows of the examples' tasks."""
        return self.rows.index_select(1, task_ids)


def _shares(assignment: Float[Tensor, "T K"]) -> Float[Tensor, "T K"]:
    if not bool(torch.isfinite(assignment).all()) or bool((assignment < 0).any()):
        raise ValueError("the expert matrix must hold finite weights of at least 0")
    sums = assignment.sum(dim=1, keepdim=True)
    empty = (sums.squeeze(1) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"the expert matrix gives no skill to the tasks with ids {empty}")
    return assignment / sums
