"""Prompts that a common decoder computes from short vectors (intrinsic prompt tuning)."""

import torch
from torch import nn
from torch.nn.functional import linear

from mttl.aggregation.mix import mix_blocks
from mttl.plugins.part_settings import Positive, PositiveInt
from mttl.skills.inputs.prompt import PromptInventory
from mttl.skills.inventory import Inventory, Merged, Weights, draw


class IntrinsicPromptInventory(Inventory):
    r"""Vectors that a decoder common to all skills turns into prompts (IPT).

    With :math:`z = \sum_k w_k z_k`, a task's prompt is :math:`W_2 \tanh(W_1 z + b_1) + b_2`, whose
    entries are P vectors before the embedded text, as in `PromptInventory`. Adaptation trains the
    vectors and keeps the decoder, unless it trains the backbone or starts from scratch.

    The paper's decoder belongs to an auto-encoder of given prompts, trained with their squared
    error and the loss of the tasks. Here vectors replace the encoder, and the loss is the tasks'.

    Args:
        dimension: Size of a skill's vector.
        hidden_features: Hidden features of the decoder.
        length: Number of vectors of a prompt.
        spread: Largest initial entry of b₂; about the scale of the backbone's embeddings.

    References:
        Qin et al., *Exploring Universal Intrinsic Task Subspace via Prompt Tuning*, 2021,
        arXiv:2110.07867.
    """

    lacks = PromptInventory.lacks
    section_defaults = PromptInventory.section_defaults
    attachment_point = "embedding"
    adapter_format = "PROMPT_TUNING"
    neutral = False
    undecayed = ("inner_bias", "outer_bias")
    common_parameters = ("inner", "inner_bias", "outer", "outer_bias")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_skills: int,
        *,
        dimension: PositiveInt = 250,
        hidden_features: PositiveInt = 768,
        length: PositiveInt = 20,
        spread: Positive = 0.5,
    ) -> None:
        super().__init__(in_features, out_features, n_skills)
        self.dimension, self.hidden_features = dimension, hidden_features
        self.length, self.spread = length, spread
        self.vectors = nn.Parameter(torch.empty(n_skills, dimension))
        self.inner = nn.Parameter(torch.empty(hidden_features, dimension))
        self.inner_bias = nn.Parameter(torch.empty(hidden_features))
        self.outer = nn.Parameter(torch.empty(length * out_features, hidden_features))
        self.outer_bias = nn.Parameter(torch.empty(length * out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vectors)
        draw(self.inner, "kaiming", self.dimension)
        draw(self.inner_bias, "kaiming", self.dimension)
        draw(self.outer, "kaiming", self.hidden_features)
        nn.init.uniform_(self.outer_bias, -self.spread, self.spread)

    def merge(self, weights: Weights) -> Merged:
        """Return the prompt of each example, shape (B, P, O)."""
        hidden = linear(mix_blocks(self.vectors, weights), self.inner, self.inner_bias).tanh()
        return (linear(hidden, self.outer, self.outer_bias).unflatten(1, (self.length, -1)),)
