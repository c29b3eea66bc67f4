"""Hash routing: the vocabulary entry of a token determines its expert."""

from typing import ClassVar

import torch
from torch import Tensor

from mttl.plugins.part_settings import Seed
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.token_router import TokenRouter


class HashRouter(TokenRouter):
    """Sends each token to the expert of its vocabulary entry in a fixed random table.

    Every expert has the same number of entries, and gates are 1, so nothing is trained. The state
    dict contains the table.

    Args:
        vocabulary_size: Number of entries V.
        seed: Seed of the random table from vocabulary entries to experts.

    Raises:
        ValueError: If there is a prior.

    References:
        Roller, Sukhbaatar, Szlam and Weston, *Hash Layers For Large Sparse Models*, NeurIPS 2021,
        arXiv:2106.04426.
    """

    lacks: ClassVar = {
        "balances": "it trains nothing; set all weights of moe.balance to 0",
        "policies": "positions have no vocabulary entries; set {path}.kind: top_k",
    }
    needs_token_ids = True
    table: Tensor

    def __init__(
        self, in_features: int, n_experts: int, *, vocabulary_size: int, seed: Seed = 0
    ) -> None:
        super().__init__(in_features, n_experts)
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
            raise ValueError("the hash router cannot use a prior; set moe.task_prior: none")
        experts = self.table[tokens.ids]
        chosen = torch.nn.functional.one_hot(experts, self.n_experts).float()
        # Logits are minus infinity elsewhere, so that the softmax is the choice.
        gates = torch.ones_like(chosen[:, 0])
        return Assignment(tokens.numbers(), experts, gates, chosen, chosen.log())
