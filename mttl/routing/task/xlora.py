"""X-LoRA: mixing weights of every token, from the last hidden states of a first pass."""

from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import Fraction, OneOf, Positive, PositiveInt
from mttl.routing.task.prompt_router import BY_TEXT
from mttl.routing.task.task_router import TaskRouter


class XLoRARouter(TaskRouter):
    r"""Weighs skills at every token by the last hidden states of a first pass (X-LoRA).

    The first pass, which has no gradient, gives all skills the weight ``scaling_pass_value``. From
    a token's last hidden state h, a classifier computes the weights
    :math:`w_{gk} = \mathrm{softmax}_k(f_{gk}(h) / \tau)` of each group g and skill k for the second
    pass. ``router.granularity: linear`` is PEFT's ``layerwise_scalings: true``, ``model`` its
    ``false``. It needs no task ids.

    Weights equal PEFT's, with these differences. In PEFT, ``top_k_lora`` also limits the first pass
    to the first skills, generation recomputes all positions at every step, and a score of exactly
    0 excludes a chosen skill from its softmax. Here the first pass has a cache of its own, so that
    each step computes the new positions only, and ``temperature`` applies to both kinds of softmax.

    Args:
        depth: Linear layers of the classifier, with ReLU and dropout between them.
        hidden_size: Width of the classifier's hidden layers.
        dropout: Dropout of the classifier's hidden layers.
        softmax: Skills of the softmax: ``"all"``, the ``"top_k"`` chosen ones, or ``"none"``
            (the scores are the weights).
        temperature: Temperature of the softmax.
        top_k: Number of skills per token and group, others have the weight 0; by default all.
        scaling_pass_value: Weight of every skill in the first pass; 0 is the backbone alone.

    Raises:
        ValueError: If ``top_k`` is above K, or is missing with ``softmax="top_k"``.

    References:
        Buehler and Buehler, *X-LoRA: Mixture of Low-Rank Adapter Experts, a Flexible Framework for
        Large Language Models with Applications in Protein Mechanics and Molecular Design*, APL
        Machine Learning 2024, arXiv:2402.07148.
    """

    asks: ClassVar = {"mixes_by_token": "kind"}
    lacks: ClassVar = {
        **BY_TEXT,
        "plots": "it mixes skills by token, so a task has no weights to plot",
        "compiles": "it runs the first pass in a hook; set backbone.compile: false",
        "routes_tokens": "it mixes skills by token itself; remove the section moe",
    }
    refuses: ClassVar = {"softmax = top_k and not top_k": "softmax 'top_k' needs top_k"}
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
        softmax: Annotated[str, OneOf("all", "top_k", "none")] = "all",
        temperature: Positive = 1.0,
        top_k: PositiveInt | None = None,
        scaling_pass_value: float = 0.0,
    ) -> None:
        super().__init__(n_groups, n_tasks, n_heads, n_skills)
        require_at_most("n_skills", n_skills, top_k=top_k or 1)
        if softmax == "top_k" and top_k is None:
            raise ValueError("softmax 'top_k' needs top_k")
        self.n_features, self.depth, self.hidden_size = n_features, depth, hidden_size
        self.dropout, self.softmax, self.temperature = dropout, softmax, temperature
        self.top_k, self.scaling_pass_value = top_k, scaling_pass_value
        sizes = [n_features, *[hidden_size] * (depth - 1)]
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(dropout)]
        self.classifier = nn.Sequential(
            *layers, nn.Linear(sizes[-1], n_groups * n_heads * n_skills)
        )

    def forward(
        self, task_ids: Int[Tensor, "B"], states: Float[Tensor, "B D"] | None = None
    ) -> Float[Tensor, "G B H K"]:
        weight = self.classifier[-1].weight
        shape = self.n_groups, len(task_ids), self.n_heads, self.n_skills
        if states is None:
            return weight.new_full(shape, self.scaling_pass_value)
        scores = self.classifier(states.to(weight.dtype))
        scores = scores.unflatten(1, (self.n_groups, self.n_heads, self.n_skills)).transpose(0, 1)
        left_out = None
        if self.top_k is not None:
            chosen = scores.topk(self.top_k, dim=-1).indices
            left_out = torch.ones_like(scores, dtype=torch.bool).scatter(-1, chosen, False)
        if left_out is not None and self.softmax == "top_k":
            scores = scores.masked_fill(left_out, -torch.inf)
        if self.softmax != "none":
            scores = torch.softmax(scores / self.temperature, dim=-1)
        return scores if left_out is None else scores.masked_fill(left_out, 0.0)
