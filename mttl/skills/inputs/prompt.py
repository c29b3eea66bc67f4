"""Prompts: vectors in front of the embedded text."""

from typing import ClassVar

import torch
from torch import nn

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.skills.inventory import NO_WEIGHTS, ONE_TEXT, Inventory, Merged, Weights


class PromptInventory(Inventory):
    r"""Vectors in front of the embedded text.

    K prompts of P vectors, prepended to the input embeddings: :math:`[\sum_k w_k P_k; E]`.

    Every layer sees P positions more, so that no fresh prompt changes nothing. Entries start
    uniformly in :math:`\pm` ``spread``; the paper's random start is 0.5, and its starts from
    vocabulary and labels are left out.

    Args:
        in_features: Entries of the vocabulary.
        out_features: Features of an embedding.
        length: Vectors of a prompt.
        spread: Largest entry of a fresh prompt; near those of the embeddings is good.

    References:
        Lester, Al-Rfou and Constant, *The Power of Scale for Parameter-Efficient Prompt Tuning*,
        EMNLP 2021, arXiv:2104.08691.
    """

    lacks: ClassVar = {
        **NO_WEIGHTS,
        "packs": ONE_TEXT,
        "routes_tokens": "it adds positions that token routers do not expect; remove the section "
        "moe, or take skills that change layers (lora, ia3, adapter …)",
    }
    section_defaults: ClassVar = {"targets": ["input"]}
    attachment_point = "embedding"
    neutral = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        length: PositiveInt = 20,
        spread: Positive = 0.5,
        n_heads: int = 1,
    ) -> None:
        super().__init__(in_features, out_features, n_skills, n_heads)
        self.length, self.spread = length, spread
        self.prompts = nn.Parameter(torch.empty(n_skills, out_features, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.prompts, -self.spread, self.spread)

    def merge(self, weights: Weights) -> Merged:
        """Return the prompt of each example, shape (B, P, O)."""
        return (mix_blocks(self.prompts, weights).mT,)
