"""Routers that read prompts, without task ids; SMEAR learns how."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from mttl.routing.task.task_router import TaskRouter


class PromptRouter(TaskRouter):
    """Weights from a vector of each prompt; of a whole task, from that of its examples."""

    lacks: ClassVar = {
        "tells_tasks_apart": "it reads prompts",
        "policies": "it reads prompts, which only text has; use a router by task, as polytropon",
        "packs": "it reads whole prompts, and packed rows are one sequence; take another router",
        **dict.fromkeys(
            ("merges", "exports_lora"),
            "it mixes skills by the prompt of every example, and no weights of a task stand for "
            "that; answer with the run itself, or take the average (--average)",
        ),
        "exports_inventory": "it mixes skills by prompt, and Poly by task",
    }
    draws = False

    def __init__(
        self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int, n_features: int
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.n_features = n_features

    def forward(
        self,
        task_ids: Int[Tensor, "B"],
        examples: Float[Tensor, "B D"],
        prompts: Float[Tensor, "B D"] | None = None,
    ) -> Float[Tensor, "G B H K"]:
        """Return the mixing weights of each example."""
        return self.weigh((examples if prompts is None else prompts).float())

    @abstractmethod
    def weigh(self, vectors: Float[Tensor, "B D"]) -> Float[Tensor, "G B H K"]:
        """Return the mixing weights of texts."""


class SmearRouter(PromptRouter):
    r"""Reads mixing weights from each prompt by a linear map; it needs no task ids (SMEAR).

    They are :math:`\mathrm{softmax}(W\,\mathrm{LN}(\bar x))` of the prompt's vector. With the
    mixing ``"factors"`` skills' parameters are averaged by these weights, as in SMEAR, so that an
    example costs what one skill costs and gradients reach the router without estimates. SMEAR reads
    what enters each layer, averaged over the sequence; here all layers read the mean of the input
    embeddings, each group with a map of its own, so that a causal decoder answers by its prompt
    alone, and the routing is computed once. Unlike SMEAR, experts are not dropped in training.

    References:
        Muqeeth, Liu and Raffel, *Soft Merging of Experts with Adaptive Routing*, TMLR 2024,
        arXiv:2306.03745.
    """

    def __init__(
        self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int, n_features: int
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills, n_features)
        shape = (n_groups, n_features, n_heads, n_skills)
        self.maps = nn.Parameter(torch.randn(shape) / n_features)

    def weigh(self, vectors: Float[Tensor, "B D"]) -> Float[Tensor, "G B H K"]:
        """Return the softmax over skills of a linear map."""
        read = layer_norm(vectors.to(self.maps.dtype), (self.n_features,))
        return torch.einsum("bd,gdhk->gbhk", read, self.maps).softmax(-1)
