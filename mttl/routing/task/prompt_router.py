"""Routers that read prompts, without task ids: SMEAR, and retrieval of members of a library."""

from abc import abstractmethod
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import OneOf, Positive, PositiveInt
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
        read = layer_norm(vectors.to(self.maps.dtype), (self.n_features,))
        return torch.einsum("bd,gdhk->gbhk", read, self.maps).softmax(-1)


class RetrievalRouter(PromptRouter):
    r"""Mixes members of a library whose examples are nearest to the prompt; nothing is trained.

    The ``top_k`` most similar members are mixed by the softmax of their similarities. A member is
    known by a vector of a few examples of its task, and an input by its prompt, or by those of its
    own task. Similarity is the cosine after the mean of all members is taken from both: means of
    input embeddings have most of their length in common.

    LoraRetriever and LORAUTER embed texts with a model made for that; here it is the backbone's
    own input embeddings. The former averages what is retrieved, which a high temperature does.

    Args:
        top_k: Members that an input uses.
        temperature: Temperature of the softmax over similarities; at large ones all members weigh
            the same.
        by: What is compared: each prompt, or some rows of its task.

    Raises:
        ValueError: If ``top_k`` is above K.

    References:
        Zhao et al., *LoraRetriever: Input-Aware LoRA Retrieval and Composition for Mixed Tasks in
        the Wild*, Findings of ACL 2024, arXiv:2402.09997. By examples of the task: LORAUTER,
        arXiv:2601.21795.
    """

    lacks: ClassVar = {
        "trains": "its members exist already. Make a run of them with `mttl library run`, or train "
        "skills with another router, such as smear"
    }
    members: Tensor

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        n_features: int,
        *,
        top_k: PositiveInt = 3,
        temperature: Positive = 0.1,
        by: Annotated[str, OneOf("prompts", "examples")] = "prompts",
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills, n_features)
        require_at_most("n_skills", n_skills, top_k=top_k)
        self.top_k, self.temperature, self.by = top_k, temperature, by
        self.register_buffer("members", torch.zeros(n_skills, n_features))

    def remember(self, vectors: Float[Tensor, "K D"]) -> None:
        """Take a vector of the examples of every member's task."""
        self.members.copy_(vectors)

    def forward(
        self,
        task_ids: Int[Tensor, "B"],
        examples: Float[Tensor, "B D"],
        prompts: Float[Tensor, "B D"] | None = None,
    ) -> Float[Tensor, "G B H K"]:
        return super().forward(task_ids, examples, prompts if self.by == "prompts" else None)

    def weigh(self, vectors: Float[Tensor, "B D"]) -> Float[Tensor, "G B H K"]:
        middle = self.members.mean(0)
        members, queries = (normalize(one - middle, dim=-1) for one in (self.members, vectors))
        near = queries @ members.t()
        best, chosen = near.topk(self.top_k, dim=-1)
        gates = torch.softmax(best / self.temperature, dim=-1)
        rows = torch.zeros_like(near).scatter(-1, chosen, gates)
        return rows[None, :, None].expand(self.n_groups, -1, self.n_heads, -1)
