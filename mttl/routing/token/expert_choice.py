"""Expert choice: each expert chooses the tokens with its highest probabilities."""

from typing import Any, ClassVar

import torch

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import Positive
from mttl.routing.token.choice import Assignment, Tokens, capacity_of, keep_pairs
from mttl.routing.token.token_router import EVEN, LinearRouter


class ExpertChoiceRouter(LinearRouter):
    r"""Lets experts choose tokens; not for causal decoders.

    With :math:`p = \mathrm{softmax}(W x)` over experts, expert e takes the
    :math:`n = \lceil c N / E \rceil` tokens of largest :math:`p_e`, which is the gate. All experts
    have the same load without a loss; a token gets between none and all experts, and its choice
    depends on later tokens of its text.

    Args:
        capacity: Mean number of experts per token.

    Raises:
        ValueError: If the capacity is above E.

    References:
        Zhou et al., *Mixture-of-Experts with Expert Choice Routing*, NeurIPS 2022,
        arXiv:2202.09368.
    """

    lacks: ClassVar = {
        **EVEN,
        "drops_evaluated_tokens": EVEN["drops_tokens"],
        "plays": "an action depends on the other frames; set {path}.kind: top_k",
    }
    causal = False

    def __init__(
        self, in_features: int, n_experts: int, *, capacity: Positive = 2.0, **settings: Any
    ) -> None:
        super().__init__(in_features, n_experts, **settings)
        require_at_most("n_experts", n_experts, capacity=capacity)
        self.capacity = capacity

    def choose(self, tokens: Tokens) -> Assignment:
        logits = tokens.logits(self.weight)
        probabilities = torch.softmax(logits, dim=-1)
        n_taken = capacity_of(len(tokens), self.n_experts, self.capacity)
        weights, taken = probabilities.t().topk(n_taken, dim=-1)  # (E, n)
        experts = torch.arange(self.n_experts, device=taken.device)[:, None].expand_as(taken)
        pairs = taken.flatten(), experts.flatten(), weights.flatten()
        choice = Assignment(*pairs, probabilities, logits)
        if tokens.prior is None:
            return choice
        # Leave out pairs that the prior excludes.
        return keep_pairs(choice, logits[choice.tokens, choice.experts] > -torch.inf)
