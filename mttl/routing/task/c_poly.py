"""C-Poly: skills common to all tasks, and private skills of each task."""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import NonNegativeInt
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRows, initial_rows


class CPolyRouter(PolytroponRouter):
    r"""Polytropon's routing over skills common to all tasks and private skills of each task.

    A task mixes A common skills and its B private ones, so T tasks have :math:`K = A + B T` skills.
    The routing is sampled as Polytropon's, masked by M, and normalised:
    :math:`w_k = M_{tk} \hat z_k / \sum_j M_{tj} \hat z_j`. Without private skills (B = 0) it is
    bit-identical to Polytropon's. The prior applies to the common skills only.

    This follows the paper's abstract and public reviews. The normalisation over common and private
    skills together is inferred from the case B = 0; initialisation, rates and prior are
    Polytropon's. The initialisation of new tasks is our choice.

    Args:
        n_skills: Number of skills K: the common ones, then B of each task, task by task.
        n_private: Private skills B of each task; 0 is the same as Polytropon.
        **settings: Settings of `PolytroponRouter` except ``shared_skill`` and ``normalise``.

    Attributes:
        allowed: Mask M of the skills that each task may use, 1 or 0, shape (T, K).

    Raises:
        ValueError: If no common skill is left.

    References:
        Wang, Sun, Jin, Wang, Fan, Xu, Du and Fan, *Customizable Combination of Parameter-Efficient
        Modules for Multi-Task Learning*, ICLR 2024, arXiv:2312.03248.
    """

    lacks: ClassVar = {
        "weighs_experts": "it gives each task private skills, but experts are shared by all tasks; "
        "set router.kind: polytropon, or moe.task_prior: none"
    }
    refuses: ClassVar = {
        condition: f"{needed} for the router c_poly, since other values would involve skills of "
        "other tasks; it is a setting of polytropon"
        for condition, needed in (
            ("shared_skill", "shared_skill must be false"),
            ("normalise != sum", "normalise must be sum"),
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
        """The skills that all tasks may use; with a single task, all skills."""
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
        """Return a router with the same skills and settings for new tasks.

        Routing weights of the common skills start as for `TaskRouter.for_new_tasks`. With
        ``private``, new tasks also get the private skills of known tasks, which the caller must
        re-initialise; their routing weights are drawn again. ValueError if these are too few.
        """
        common = self.common
        sharing = self.allowed[:, common].bool().all(1)
        rows = initial_rows(self.logits[:, sharing], n_tasks, init, self.init_scale)
        allowed = common.expand(n_tasks, -1).to(self.allowed.dtype)
        if private and not bool(common.all()):
            allowed = self.allowed[sharing][:n_tasks]
            if len(allowed) < n_tasks:
                raise ValueError(
                    f"n_tasks ({n_tasks}) must be at most {len(allowed)}, those with private skills"
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
