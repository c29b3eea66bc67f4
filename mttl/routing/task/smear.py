"""A learned router of prompts: each example mixes the skills by what it reads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from mttl.routing.task.prompt_router import PromptRouter


class SmearRouter(PromptRouter):
    r"""Reads mixing weights from each prompt by a linear map; it needs no task ids (SMEAR).

    They are :math:`\mathrm{softmax}(W\,\mathrm{LN}(\bar x))` of the prompt's vector. With the
    mixing ``"factors"`` skills' parameters are averaged by these weights, as in SMEAR, so that an
    example costs what one skill costs and gradients reach the router without estimates. SMEAR reads
    what enters each layer, averaged over the sequence; here all layers read the mean of the input
    embeddings, each group with a map of its own, so that a causal decoder answers by its prompt
    alone, and the routing is computed once. SMEAR drops experts in training; here there is none of
    that.

    Args:
        n_groups: Routed groups G.
        n_tasks: Tasks T.
        n_heads: Heads H.
        n_skills: Skills K.
        n_features: Size D of the backbone's embeddings.

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
