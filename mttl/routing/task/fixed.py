"""Routers that learn nothing: the baselines, and the average of an inventory."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.routing.task.task_router import TaskRouter, TaskRows


class FixedRouter(TaskRouter):
    """Mixes by a given matrix, the same in every group and head.

    Args:
        weights: Mixing weights, shape (T, K); rows are used as they are.
        n_groups: Routed groups G.
        n_heads: Heads H.
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

    def matrix(self) -> Float[Tensor, "G T H K"]:
        """Return the given matrix, repeated for every group and head."""
        return self._in_all_groups(self.weights)

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        """Return 1 for the skills that a task uses, else 0."""
        return self._in_all_groups((self.weights > 0).to(self.weights.dtype))

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "FixedRouter":
        """Return a router whose new tasks use the mean of the known rows, or all skills equally."""
        if init == "mean":
            row = self.weights.mean(dim=0, keepdim=True)
        elif init == "fresh":
            row = torch.full_like(self.weights[:1], 1 / self.n_skills)
        else:
            raise ValueError(f"init ('{init}') must be 'mean' or 'fresh'")
        return FixedRouter(row.repeat(n_tasks, 1), self.n_groups, self.n_heads)

    def _in_all_groups(self, rows: Float[Tensor, "N K"]) -> Float[Tensor, "G N H K"]:
        shape = (self.n_groups, rows.shape[0], self.n_heads, self.n_skills)
        return rows[None, :, None, :].expand(shape)


def shared_router(n_groups: int, n_tasks: int, n_heads: int = 1) -> FixedRouter:
    """Return the Shared baseline: one skill that every task uses."""
    return FixedRouter(torch.ones(n_tasks, 1), n_groups, n_heads)


def private_router(n_groups: int, n_tasks: int, n_heads: int = 1) -> FixedRouter:
    """Return the Private baseline: as many skills as tasks, one each."""
    return FixedRouter(torch.eye(n_tasks), n_groups, n_heads)


def average_router(n_groups: int, n_tasks: int, n_skills: int, n_heads: int = 1) -> FixedRouter:
    """Return uniform mixing over all skills (MHR-μ when applied to a trained inventory)."""
    return FixedRouter(torch.full((n_tasks, n_skills), 1 / n_skills), n_groups, n_heads)


def expert_router(assignment: Float[Tensor, "T K"], n_groups: int, n_heads: int = 1) -> FixedRouter:
    """Return the Expert baseline: a matrix known beforehand, its rows normalised to sum to 1.

    Args:
        assignment: Non-negative weights (or 0 and 1) of tasks by skills, shape (T, K).
        n_groups: Routed groups G.
        n_heads: Heads H.

    Raises:
        ValueError: If a weight is negative or not finite, or a task has no skill.
    """
    if not bool(torch.isfinite(assignment).all()) or bool((assignment < 0).any()):
        raise ValueError("the expert matrix must hold finite weights of at least 0")
    sums = assignment.sum(dim=1, keepdim=True)
    empty = (sums.squeeze(1) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"the expert matrix gives no skill to the tasks with ids {empty}")
    return FixedRouter(assignment / sums, n_groups, n_heads)
