"""X-LoRA: mixing weights of every token, from the last hidden states of a first pass."""

from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import Fraction, OneOf, Positive, PositiveInt
from mttl.routing.task.prompt_router import PromptRouter
from mttl.routing.task.task_router import TaskRouter


class XLoRARouter(TaskRouter):
    r"""Weighs skills at every token by its last hidden state in a first pass (X-LoRA).

    The first pass has the weight ``scaling_pass_value`` for all skills, and no gradient. From a
    token's state h, a classifier f computes the weights of each group g and skill k in the second
    pass, :math:`w_{gk} = \mathrm{softmax}_k(f_{gk}(h) / \tau)`. The granularity ``linear`` is
    ``layerwise_scalings`` of PEFT; ``model`` gives all layers the same weights.

    It equals PEFT's, except that ``top_k_lora`` there also limits the first pass, to the first
    skills. PEFT generates without a cache; here the first pass has one of its own, so each step
    computes only new positions.

    Args:
        depth: Linear layers of the classifier, with ReLU and dropout between them.
        hidden_size: Width of its hidden layers.
        dropout: Dropout of its hidden layers.
        softmax: Scores of the softmax: of ``"all"`` skills, or of the ``"chosen"`` ones; with
            ``"none"`` the scores are the weights.
        temperature: Temperature of the softmax.
        top_k: Skills per token and group, the others have the weight 0; by default all.
        scaling_pass_value: Weight of every skill in the first pass; 0 is the backbone alone.

    Raises:
        ValueError: If ``top_k`` is above K.

    References:
        Buehler and Buehler, *X-LoRA: Mixture of Low-Rank Adapter Experts, a Flexible Framework for
        Large Language Models*, APL Machine Learning 2024, arXiv:2402.07148.
    """

    asks: ClassVar = {"mixes_by_token": "kind"}
    lacks: ClassVar = {
        **PromptRouter.lacks,
        "packs": "",
        "plots": "it mixes skills by token, so a task has no weights to plot",
        "compiles": "it runs the first pass in a hook; set backbone.compile: false",
        "routes_tokens": "it mixes skills by token itself; remove the section moe",
    }
    draws = False

    def __init__(
        self,
        n_groups: int,
        n_tasks: int,
        n_heads: int,
        n_skills: int,
        n_features: int,
        *,
        depth: PositiveInt = 1,
        hidden_size: PositiveInt = 2048,
        dropout: Fraction = 0.2,
        softmax: Annotated[str, OneOf("all", "chosen", "none")] = "all",
        temperature: Positive = 1.0,
        top_k: PositiveInt | None = None,
        scaling_pass_value: float = 0.0,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        require_at_most("n_skills", n_skills, top_k=top_k or 1)
        self.n_features, self.depth, self.hidden_size = n_features, depth, hidden_size
        self.dropout, self.softmax, self.temperature = dropout, softmax, temperature
        self.top_k, self.scaling_pass_value = top_k, scaling_pass_value
        sizes = [n_features, *[hidden_size] * (depth - 1), n_groups * n_heads * n_skills]
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(dropout)]
        self.classifier = nn.Sequential(*layers[:-2])

    def forward(
        self, task_ids: Int[Tensor, "B"], states: Float[Tensor, "B D"] | None = None
    ) -> Float[Tensor, "G B H K"]:
        like, sizes = next(self.classifier.parameters()), (self.n_heads, self.n_skills)
        if states is None:
            return like.new_full((self.n_groups, len(task_ids), *sizes), self.scaling_pass_value)
        scores = self.classifier(states.to(like.dtype))
        scores = scores.unflatten(1, (self.n_groups, *sizes)).transpose(0, 1)
        chosen = scores.topk(self.top_k or self.n_skills, dim=-1).indices
        left_out = torch.ones_like(scores, dtype=torch.bool).scatter(-1, chosen, False)
        if self.softmax == "chosen":
            scores = scores.masked_fill(left_out, -torch.inf)
        if self.softmax != "none":
            scores = torch.softmax(scores / self.temperature, dim=-1)
        return scores.masked_fill(left_out, 0.0)
