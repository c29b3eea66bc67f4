"""Routers that read prompts: they need no task's id to answer."""

from abc import abstractmethod
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from mttl.routing.task.task_router import TaskRouter


class PromptRouter(TaskRouter):
    """Weights from a vector of each prompt.

    Where a whole task is asked about, as in figures, the vector of its examples stands for its
    prompts. Vectors are means of the backbone's input embeddings over tokens.
    """

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
