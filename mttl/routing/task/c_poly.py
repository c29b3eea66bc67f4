"""C-Poly: skills that all tasks share, and some that each task has for itself."""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import NonNegativeInt
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRows, initial_rows


class CPolyRouter(PolytroponRouter):
    r"""Polytropon's rows over skills that all tasks share, and some of each task (C-Poly).

    A mask M has the skills that a task may use. A task mixes A skills that are common to all tasks
    and B that are its own, so that of T tasks there are :math:`K = A + B T` skills. Its choices are
    drawn as Polytropon's are, and :math:`w_k = M_{tk} \hat z_k / \sum_j M_{tj} \hat z_j`. Without
    skills of their own (B = 0) tasks have Polytropon's rows, bit for bit. The prior is of the
    common skills: of those of a single task there is no sharing to say anything about.

    This follows the paper's abstract and public reviews. That one sum over common and own skills
    divides the row is taken from B = 0; start, rates and prior are Polytropon's. How a new task
    begins is ours.

    Args:
        n_skills: Skills K: the common ones, and behind them B of each task, task by task.
        n_private: Skills that each task has for itself, besides; 0 is Polytropon.
        **settings: Those of `PolytroponRouter`, but for a shared skill, and rows divided by sums.

    Attributes:
        allowed: Which task may use which skill: 1 or 0, shape (T, K).

    Raises:
        ValueError: If no skill is left to be common.

    References:
        Wang, Sun, Jin, Wang, Fan, Xu, Du and Fan, *Customizable Combination of Parameter-Efficient
        Modules for Multi-Task Learning*, ICLR 2024, arXiv:2312.03248.
    """

    lacks: ClassVar = {
        "weighs_experts": "it gives tasks skills of their own, and experts are of no task; use "
        "polytropon"
    }
    refuses: ClassVar = {
        f"{condition}": f"{name} ({{{name}}}) must be {needed} for the c_poly router, where it "
        "would count skills of other tasks; it is a setting of polytropon"
        for condition, name, needed in (
            ("shared_skill", "shared_skill", False),
            ("normalise != sum", "normalise", "sum"),
        )
    }
    task_rows: ClassVar = {**PolytroponRouter.task_rows, "allowed": TaskRows(axis=0, unused=0.0)}
    allowed: Tensor

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        n_private: NonNegativeInt = 1,
        **settings: Any,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills, **settings)
        self.n_private = n_private
        self.n_common = n_skills - n_tasks * n_private
        require_at_most("n_skills - 1", n_skills - 1, n_private_skills=n_tasks * n_private)
        own = torch.eye(n_tasks).repeat_interleave(n_private, dim=1)
        allowed = torch.cat([torch.ones(n_tasks, self.n_common), own], dim=1)
        self.register_buffer("allowed", allowed)

    @property
    def common(self) -> Bool[Tensor, "K"]:
        """The skills that most tasks may use; others are of one task. Of one task all are."""
        n_users = self.allowed.sum(0)
        return n_users == n_users.max()

    def draw(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        return super().draw(task_ids) * self.allowed.index_select(0, task_ids).unsqueeze(1)

    def probabilities(self) -> Float[Tensor, "G T H K"]:
        return super().probabilities() * self.allowed.unsqueeze(1)

    def prior_loss(self) -> Float[Tensor, ""]:
        probabilities = self.logits.sigmoid() * self.allowed.unsqueeze(1)
        return self.prior(probabilities[..., : self.n_common])

    def for_new_tasks(
        self, n_tasks: int, *, init: str = "mean", private: bool = False
    ) -> "CPolyRouter":
        """Return a router of the same skills and settings for new tasks.

        They use the common skills, over which rows start as ``init`` says. With ``private`` they
        have skills of their own too, in the places of those of known tasks, which have to be
        re-initialised; rows over these are drawn again.

        Raises:
            ValueError: If there are not as many places, or ``init`` is unknown.
        """
        common = self.common
        sharing = self.allowed[:, common].bool().all(1)
        rows = initial_rows(self.logits[:, sharing], n_tasks, init, self.init_scale)
        allowed = common.expand(n_tasks, -1).to(self.allowed.dtype)
        if private and not bool(common.all()):
            allowed = self.allowed[sharing][:n_tasks]
            if len(allowed) < n_tasks:
                raise ValueError(
                    f"n_tasks ({n_tasks}) must be at most {len(allowed)}: new tasks have skills of "
                    "their own where as many known ones have theirs"
                )
            fresh = initial_rows(self.logits, n_tasks, "fresh", self.init_scale)
            rows = torch.where(common, rows, fresh)
        router = self.rebuilt(n_tasks=n_tasks, n_private=0)
        assert isinstance(router, CPolyRouter)
        router.n_common = self.n_common
        router.allowed.copy_(allowed)
        with torch.no_grad():
            router.logits.copy_(rows)
        return router
