"""Routing by metadata: the row of a task is composed of what the task is known to be made of."""

from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.plugins.part_settings import Names, ReadFrom
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRows


class MetadataRouter(PolytroponRouter):
    r"""Composes a task's row of what it is known to be made of: the sum of its factors' logits.

    Factors are such as a language or an operation. With the factors :math:`F_t` of task t,
    :math:`z_t = \sum_{f \in F_t} \lambda_f`; from these logits on it is Polytropon's router: a
    factor raises or lowers the odds of each skill, whatever the others do. So a task that
    recombines known factors has a row before anything is trained.

    Args:
        factors: Factors of each task, such as `{de_date_long: [language=de, operation=date_long]}`;
            by default the column `factors` of the gym's TASKS.csv. Here 1 or 0, shape (T, F).
        **settings: Those of `PolytroponRouter`.

    References:
        Pfeiffer, Ruder, Vulić and Ponti, *Modular Deep Learning*, TMLR 2023, arXiv:2302.11529,
        section 4, on fixed routing by metadata. There a module belongs to a value of a factor, and
        a task uses those of its values; here which modules a value uses is learned. Fixed modules
        per value are the Expert's matrix.
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
        """Return the sums over the factors of some tasks, of all by default."""
        own = self.factors if task_ids is None else self.factors.index_select(0, task_ids)
        return self.composed(own)

    def composed(self, factors: Float[Tensor, "N F"]) -> Float[Tensor, "G N H Q"]:
        """Return the logits of tasks with given factors."""
        sums = torch.einsum("nf,gfhq->gnhq", factors.to(self.logits.dtype), self.logits)
        return sums.contiguous()  # noise is drawn in the order of the memory
