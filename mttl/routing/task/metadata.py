"""Routing by metadata: the routing logits of a task are the sum of those of its factors."""

from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.plugins.part_settings import Names, ReadFrom
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRows


class MetadataRouter(PolytroponRouter):
    r"""Sums the logits of a task's known factors, such as language and operation.

    With the factors :math:`F_t` of task t, :math:`z_t = \sum_{f \in F_t} \lambda_f`, so each factor
    raises or lowers the odds of each skill; the rest is Polytropon's router. A new task that
    recombines known factors has routing weights without training.

    Args:
        factors: Factors of each task, such as `{de_date_long: [language=de, operation=date_long]}`;
            by default the column `factors` of TASKS.csv in the folder of tasks.
        **settings: Settings of `PolytroponRouter`.

    References:
        Pfeiffer, Ruder, Vulić and Ponti, *Modular Deep Learning*, TMLR 2023, arXiv:2302.11529,
        section 4, on fixed routing by metadata: a task uses the modules of its factors' values,
        as `ExpertRouter` can. Here the modules of a value are learned.
    """

    task_rows: ClassVar = {"factors": TaskRows(axis=0)}
    factors: Tensor

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        factors: Annotated[Float[Tensor, "T F"], ReadFrom(dict[str, Names], {})],
        **settings: Any,
    ) -> None:
        super().__init__(n_groups, factors.shape[1], n_heads, n_skills, **settings)
        self.n_tasks = n_tasks
        self.register_buffer("factors", factors.clone())

    def task_logits(self, task_ids: Int[Tensor, "N"] | None = None) -> Float[Tensor, "G N H Q"]:
        own = self.factors if task_ids is None else self.factors.index_select(0, task_ids)
        return self.composed(own)

    def composed(self, factors: Float[Tensor, "N F"]) -> Float[Tensor, "G N H Q"]:
        """Return the logits of tasks with given factors."""
        sums = torch.einsum("nf,gfhq->gnhq", factors.to(self.logits.dtype), self.logits)
        return sums.contiguous()  # noise follows the memory layout
