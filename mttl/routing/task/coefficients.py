"""Free coefficients: rows that are learned and used as they are."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.routing.task.task_router import SignedRouter, TaskRows


class CoefficientRouter(SignedRouter):
    """Mixes by learned rows without bounds or normalisation; they start at 1 / K.

    Over skills that stay as they are these are the coefficients of LoRA soups (CAT): one per skill
    and group of layers, with the mixing ``"outputs"`` or ``"deltas"``, which add whole changes.

    References:
        Prabhakar, Li, Narasimhan, Kakade, Malach and Jelassi, *LoRA Soups: Merging LoRAs for
        Practical Skill Composition Tasks*, COLING 2025, arXiv:2410.13025.
    """

    draws = False
    task_rows: ClassVar = {"rows": TaskRows(axis=1, unused=0.0)}

    def __init__(self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.rows = nn.Parameter(torch.full((n_groups, n_tasks, n_heads, n_skills), 1 / n_skills))

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        """Return the rows of the examples' tasks."""
        return self.rows.index_select(1, task_ids)
