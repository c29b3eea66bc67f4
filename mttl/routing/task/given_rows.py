"""A router whose rows are given, group by group and head by head: rows of several routers."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from mttl.routing.task.task_router import TaskRouter, TaskRows, initial_rows


class GivenRows(TaskRouter):
    """Mixes by given rows; it learns nothing."""

    draws = False
    task_rows: ClassVar = {"rows": TaskRows(axis=1, unused=0.0)}
    rows: Tensor

    def __init__(self, rows: Float[Tensor, "G T H K"]) -> None:
        super().__init__(*rows.shape)
        self.register_buffer("rows", rows.detach().clone())

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the rows of the examples' tasks."""
        return self.rows.index_select(1, task_ids)

    def matrix(self) -> Float[Tensor, "G T H K"]:
        """Return the given rows."""
        return self.rows

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "GivenRows":
        """Return a router for new tasks; fresh rows weigh skills by less than 1 / K each."""
        return GivenRows(initial_rows(self.rows, n_tasks, init, 1 / self.n_skills))
