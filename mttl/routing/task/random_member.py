"""A random skill per training step, the mean of all skills afterwards: AdaMix."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mttl.plugins.part_settings import NonNegative
from mttl.routing.task.fixed import BLIND, FixedRouter


class RandomRouter(FixedRouter):
    r"""Draws one skill per training step for all tasks, and averages them afterwards (AdaMix).

    Each routed group has a draw for the whole batch. In evaluation the K skills have equal weights:
    with a mixing of parameters (``"factors"``) this is the averaged member that AdaMix keeps.
    Members learn to agree by the loss of `consistency`, half of :math:`\mathrm{KL}(p \| q) +
    \mathrm{KL}(q \| p)` of the answers p and q of two passes with draws of their own; the first one
    alone learns from the labels.

    AdaMix draws the ways down and up of an adapter apart; here a skill is drawn whole. Its members
    begin as copies of one, without which their average is no member: set ``skills.identical_init``.

    Args:
        consistency: Weight in the loss of how far two passes with other draws differ; 0 computes
            one pass.

    References:
        Wang, Agarwal, Mukherjee, Liu, Gao, Awadallah and Gao, *AdaMix: Mixture-of-Adaptations for
        Parameter-efficient Model Tuning*, EMNLP 2022, arXiv:2205.12410.
    """

    lacks: ClassVar = {
        "policies": ("consistency", "it compares two answers, which only text has; set it to 0"),
        "shards": ("consistency", "two passes go before the backward one; set it to 0, or use ddp"),
        **BLIND,
    }
    draws: ClassVar[bool] = True

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        consistency: NonNegative = 1.0,
    ) -> None:
        super().__init__(torch.full((n_tasks, n_skills), 1 / n_skills), n_groups, n_heads)
        self.consistency = consistency

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the skill that each group drew while training, else equal weights."""
        if not self.training:
            return super().forward(task_ids)
        rows = self.weights.index_select(0, task_ids).cumsum(-1)
        # One draw for all rows, which may leave some skills out.
        drawn = torch.rand(self.n_groups, 1, 1, device=rows.device) * rows[None, :, -1:]
        chosen = functional.one_hot((drawn >= rows).sum(-1), self.n_skills).to(rows.dtype)
        return chosen.unsqueeze(2).expand(-1, -1, self.n_heads, -1)

    def for_new_tasks(self, n_tasks: int, *, init: str = "mean") -> "RandomRouter":
        """Return a router whose new tasks draw as the known ones do."""
        router = self.rebuilt(n_tasks=n_tasks)
        assert isinstance(router, RandomRouter)
        router.weights = super().for_new_tasks(n_tasks, init=init).weights
        return router
