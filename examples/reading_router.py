"""A router that reads: it mixes skills by what a task is said to be, and by the prompt itself."""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from mttl.routing import TaskRouter


class ReadingRouter(TaskRouter):
    """Mixes skills by the softmax of two linear maps, of description and prompt.

    `forward` asks for both by their names. There is no row of any task, so a new task is routed by
    its description before anything of it was trained.

    Args:
        sizes: Groups, tasks, heads, skills, and features of the backbone's embeddings; supplied.
    """

    def __init__(
        self, n_groups: int, n_tasks: int, n_heads: int, n_skills: int, n_features: int
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        self.n_features = n_features
        shape = (2, n_groups, n_features, n_heads, n_skills)
        self.maps = nn.Parameter(torch.randn(shape) / n_features)

    def forward(
        self, task_ids: Tensor, descriptions: Tensor, prompts: Tensor | None = None
    ) -> Tensor:
        """Return weights of the shape (groups, examples, heads, skills).

        Args:
            task_ids: Of the examples.
            descriptions: A vector of each example's task.
            prompts: A vector of each prompt; none where the weights of a whole task are asked for.
        """
        logits = self._read(descriptions, self.maps[0])
        if prompts is not None:
            logits = logits + self._read(prompts, self.maps[1])
        return logits.softmax(-1)

    def _read(self, vectors: Tensor, maps: Tensor) -> Tensor:
        read = layer_norm(vectors.to(maps.dtype), (self.n_features,))
        return torch.einsum("bd,gdhk->gbhk", read, maps)
