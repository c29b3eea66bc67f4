"""A custom router: tasks and skills are points of one space, and tasks mix nearby skills."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from mttl.plugins.part_settings import Positive
from mttl.routing import TaskRouter
from mttl.routing.task.task_router import TaskRows


class NearbyRouter(TaskRouter):
    """Mixes skills by the softmax of task · skill / temperature.

    Args:
        dimensions: Dimensions of the space.
        temperature: Small ones let a task choose, large ones let it mix.
    """

    task_rows: ClassVar = {"tasks": TaskRows(axis=1)}  # new tasks start at their mean

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int, *,
                 dimensions: int = 4, temperature: Positive = 1.0) -> None:  # fmt: skip
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.dimensions, self.temperature = dimensions, temperature
        self.tasks = nn.Parameter(0.1 * torch.randn(n_groups, n_tasks, n_heads, dimensions))
        self.skills = nn.Parameter(torch.randn(n_groups, n_skills, n_heads, dimensions))

    def forward(self, task_ids: Tensor) -> Tensor:
        """Return weights of the shape (groups, examples, heads, skills)."""
        points = self.tasks.index_select(1, task_ids)
        near = torch.einsum("gbhd,gkhd->gbhk", points, self.skills)
        return (near / self.temperature).softmax(-1)
