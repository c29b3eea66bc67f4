"""Task-level mixture of experts: each task mixes its most probable skills."""

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Float, Int
from torch import Tensor

from mttl.io.errors import require_at_most
from mttl.routing.task.task_router import TaskRouter, TaskRows, uniform


class TaskMoERouter(TaskRouter):
    r"""Mixes the most probable skills of each task.

    With :math:`p = \mathrm{softmax}(z_t + \epsilon)` and S the ``top_k`` largest entries of p,
    :math:`w_k = p_k / \sum_{j \in S} p_j` for k in S, else 0. The normalisation gives logits
    gradients for every ``top_k`` above 1.

    Args:
        top_k: Number of skills of a task.
        noise: Whether training adds noise of standard deviation 1 / K to the logits.

    Raises:
        ValueError: If ``top_k`` is above ``n_skills``.

    References:
        Kudugunta, Huang, Bapna, Krikun, Lepikhin, Luong and Firat, *Beyond Distillation: Task-level
        Mixture-of-Experts for Efficient Inference*, Findings of EMNLP 2021, arXiv:2110.03742.
    """

    init_scale = 1e-3  # logits start in U(-init_scale, init_scale)
    task_rows: ClassVar = {"logits": TaskRows(axis=1, unused=-30.0)}

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        top_k: Annotated[int, Ge(2)] = 2,
        noise: bool = True,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        require_at_most("n_skills", n_skills, top_k=top_k)
        self.top_k = top_k
        self.noise = noise
        self.logits = uniform(self.init_scale, n_groups, n_tasks, n_heads, n_skills)

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        logits = self.logits.index_select(1, task_ids)
        if self.training and self.noise:
            logits = logits + torch.randn_like(logits) / self.n_skills
        chosen = logits.topk(self.top_k, dim=-1).indices
        kept = torch.full_like(logits, -torch.inf).scatter(-1, chosen, 0.0)
        # The softmax over the kept logits is the full softmax renormalised over them.
        return torch.softmax(logits + kept, dim=-1)

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        return (self.matrix() > 0).to(self.logits.dtype)
