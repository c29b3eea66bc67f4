"""A custom router: tasks and skills are points of one space, and tasks mix nearby skills."""

import torch
from torch import Tensor, nn

from mttl.routing import TaskRouter


class NearbyRouter(TaskRouter):
    """Mixes skills by the softmax of task · skill / temperature.

    Args:
        sizes: Groups, tasks, heads and skills, which the program supplies.
        dimensions: Of the space.
        temperature: Small ones let a task choose, large ones let it mix.
    """

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int,
                 *, dimensions: int = 4, temperature: float = 1.0) -> None:  # fmt: skip
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.settings = {"dimensions": dimensions, "temperature": temperature}
        self.tasks = nn.Parameter(0.1 * torch.randn(n_groups, n_tasks, n_heads, dimensions))
        self.skills = nn.Parameter(torch.randn(n_groups, n_skills, n_heads, dimensions))

    def forward(self, task_ids: Tensor) -> Tensor:
        """Return weights of the shape (groups, examples, heads, skills)."""
        points = self.tasks.index_select(1, task_ids)
        near = torch.einsum("gbhd,gkhd->gbhk", points, self.skills)
        return (near / self.settings["temperature"]).softmax(-1)

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "NearbyRouter":
        """Return a router with these skills, whose tasks start in the middle of the known ones."""
        sizes = self.n_groups, n_tasks, self.n_heads, self.n_skills
        new = NearbyRouter(*sizes, **self.settings).to(self.tasks.device)
        new.skills.data.copy_(self.skills)
        if init == "mean":
            new.tasks.data.copy_(self.tasks.mean(1, keepdim=True).expand_as(new.tasks))
        return new
