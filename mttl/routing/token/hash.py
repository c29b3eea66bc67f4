"""Hash routing: the expert of a token is fixed by its vocabulary entry."""

from typing import ClassVar

import torch
from torch import Tensor

from mttl.io.errors import require_at_least
from mttl.plugins.part_settings import Seed
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.token_router import TokenRouter


class HashRouter(TokenRouter):
    """Sends each token to the expert that a fixed random table names for its vocabulary entry.

    The table gives every expert the same number of entries. There is nothing to learn: the gate is
    1. The state dict holds the table.

    Args:
        vocabulary_size: Entries V.
        seed: Of the table; a layer's own makes layers differ.

    Raises:
        ValueError: If the vocabulary is smaller than the number of experts, or there is a prior.

    References:
        Roller, Sukhbaatar, Szlam and Weston, *Hash Layers For Large Sparse Models*, NeurIPS 2021,
        arXiv:2106.04426.
    """

    lacks: ClassVar = {"balances": "it learns nothing; set it to 0"}
    needs_token_ids = True
    table: Tensor

    def __init__(
        self, in_features: int, n_experts: int, *, vocabulary_size: int, seed: Seed = 0
    ) -> None:
        super().__init__(in_features, n_experts)
        require_at_least(n_experts, vocabulary_size=vocabulary_size)
        self.seed = seed
        self.register_buffer("table", torch.empty(vocabulary_size, dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(self.table), generator=generator)
        self.table.copy_(order % self.n_experts)

    def choose(self, tokens: Tokens) -> Assignment:
        assert tokens.ids is not None
        if tokens.prior is not None:
            raise ValueError("HashRouter has no logits that a prior could be added to; give none")
        experts = self.table[tokens.ids]
        chosen = torch.nn.functional.one_hot(experts, self.n_experts).float()
        # As logits, minus infinity elsewhere: the softmax is the choice.
        gates = torch.ones_like(chosen[:, 0])
        return Assignment(tokens.numbers(), experts, gates, chosen, chosen.log())
