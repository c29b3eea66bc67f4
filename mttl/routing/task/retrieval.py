"""Retrieval: an input uses the members of a library whose own examples are nearest to it."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import OneOf, Positive, PositiveInt
from mttl.routing.task.prompt_router import PromptRouter


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
        self.top_k = top_k
        self.temperature = temperature
        self.by = by
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
        """Return the mixing weights of each example."""
        return super().forward(task_ids, examples, prompts if self.by == "prompts" else None)

    def weigh(self, vectors: Float[Tensor, "B D"]) -> Float[Tensor, "G B H K"]:
        """Return the softmax over the nearest members."""
        middle = self.members.mean(0)
        members, queries = (normalize(one - middle, dim=-1) for one in (self.members, vectors))
        near = queries @ members.t()
        best, chosen = near.topk(self.top_k, dim=-1)
        gates = torch.softmax(best / self.temperature, dim=-1)
        rows = torch.zeros_like(near).scatter(-1, chosen, gates)
        return rows[None, :, None].expand(self.n_groups, -1, self.n_heads, -1)
