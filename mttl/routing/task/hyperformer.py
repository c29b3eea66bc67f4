"""HyperFormer: mixing weights generated from an embedding of the task."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.plugins.part_settings import PositiveInt
from mttl.routing.task.task_router import SignedRouter, TaskRows, uniform


class HyperFormerRouter(SignedRouter):
    r"""Generates mixing weights from a learned embedding of the task.

    A hyper-network whose last layer is linear without bias, :math:`\phi_t = W_2 h_t`, mixes the
    columns of :math:`W_2`. These columns are the skills, and the router computes the mixing weights
    :math:`h_t = W_1' \mathrm{ReLU}(W_1 e_t + b_1) + b_1'`. They are not normalised and may be
    negative.

    Args:
        n_heads: Number of heads; must be 1, since one vector generates the whole module.
        embedding_size: Size of the embedding; the number of skills by default.

    References:
        Karimi Mahabadi, Ruder, Dehghani and Henderson, *Parameter-efficient Multi-task Fine-tuning
        for Transformers via Shared Hypernetworks*, ACL 2021, arXiv:2106.04489. Here it generates
        low-rank modules, as in the comparison of Ponti et al., arXiv:2202.13914.
    """

    lacks: ClassVar = {"has_heads": "it supports one head only; set skills.n_heads: 1"}
    draws = False
    task_rows: ClassVar = {"embeddings": TaskRows(axis=1)}

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        *,
        embedding_size: PositiveInt | None = None,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.embedding_size = embedding_size or n_skills
        self.embeddings = nn.Parameter(torch.randn(n_groups, n_tasks, self.embedding_size))
        self.hidden = _GroupedLinear(n_groups, self.embedding_size, n_skills)
        self.output = _GroupedLinear(n_groups, n_skills, n_skills)

    def forward(self, task_ids: Int[Tensor, "B"]) -> Float[Tensor, "G B H K"]:
        embeddings = self.embeddings.index_select(1, task_ids)
        return self.output(self.hidden(embeddings).relu()).unsqueeze(2)


class _GroupedLinear(nn.Module):
    """G separate linear maps, initialised as `nn.Linear`."""

    def __init__(self, n_groups: int, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = uniform(bound, n_groups, in_features, out_features)
        self.bias = uniform(bound, n_groups, 1, out_features)

    def forward(self, x: Float[Tensor, "G N I"]) -> Float[Tensor, "G N O"]:
        return torch.baddbmm(self.bias, x, self.weight)
