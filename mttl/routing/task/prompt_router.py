"""Routers that read prompts instead of task ids: SMEAR, and retrieval of library members."""

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
    """Computes weights from a vector of each prompt; for a task, from the mean of its examples."""

    lacks: ClassVar = {
        "tells_tasks_apart": "this router reads the text, not tasks",
        "policies": "it reads prompts of text; set router.kind: polytropon, for example",
        "stacks": "it mixes skills by the text, so a task has no fixed weights",
        "packs": "it reads one prompt per sequence; remove data.packed_length",
        **dict.fromkeys(
            ("merges", "exports_lora"),
            "it mixes skills by the text, so a task has no fixed weights; use the run itself, or "
            "the average (--average)",
        ),
        "exports_inventory": "it mixes skills by the text, but Poly mixes by task",
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
    r"""Computes mixing weights from each prompt by a linear map; it needs no task ids (SMEAR).

    The weights are :math:`\mathrm{softmax}(W\,\mathrm{LN}(\bar x))` of the prompt's vector. With
    ``mix="factors"`` they average the parameters of the skills, as in SMEAR, at the cost of one
    skill per example and with exact gradients. SMEAR reads the mean input of each layer; here all
    layers read the mean of the prompt's input embeddings, with a separate map per group, so that
    routing is computed once and causal decoders are supported. Unlike in SMEAR, experts have no
    dropout.

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
    r"""Mixes the library members whose examples are most similar to the prompt; without training.

    The ``top_k`` most similar members are mixed by the softmax of their similarities. Vectors are
    means of input embeddings: of a few examples of a member's task, and of the prompt or a few
    examples of the input's task. The similarity is the cosine of their differences from the
    members' mean, since such vectors have a large common part.

    LoraRetriever and LORAUTER use an embedding model instead of input embeddings. LoraRetriever
    averages the retrieved members, as a high temperature does here.

    Args:
        top_k: Number of library members that are mixed for each input.
        temperature: Temperature of the softmax over similarities; high values give equal weights.
        by: Text that is compared: each prompt, or examples of its task.

    Raises:
        ValueError: If ``top_k`` is above K.

    References:
        Zhao et al., *LoraRetriever: Input-Aware LoRA Retrieval and Composition for Mixed Tasks in
        the Wild*, Findings of ACL 2024, arXiv:2402.09997. By examples of the task: LORAUTER,
        arXiv:2601.21795.
    """

    lacks: ClassVar = {
        "trains": "it needs trained members of a library. Make a run of them with `mttl library "
        "run`, or train skills with another router, such as smear"
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
