"""BASE routing: while training, tokens are dealt out to experts evenly."""

from typing import ClassVar

import torch
from torch import nn

from mttl.routing.token.balanced_assignment import balanced_assignment
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.token_router import EVEN, TokenRouter


class BaseRouter(TokenRouter):
    r"""Sends each token to one expert: by balanced assignment in training, else to its best.

    With affinities :math:`s = W x`, training maximises :math:`\sum_n s_{n, a(n)}` under equal loads
    (without a gradient), evaluation takes :math:`a(n) = \arg\max_e s_{n,e}`. The gate is
    :math:`\sigma(s_{n, a(n)})`. No balancing loss is needed, and none is offered.

    References:
        Lewis, Bhosale, Dettmers, Goyal and Zettlemoyer, *BASE Layers: Simplifying Training of
        Large, Sparse Models*, ICML 2021, arXiv:2103.16716.
    """

    lacks: ClassVar = EVEN

    def __init__(self, in_features: int, n_experts: int) -> None:
        super().__init__(in_features, n_experts)
        self.weight = nn.Parameter(torch.empty(n_experts, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw nearly orthogonal centroids of length 0.1."""
        nn.init.orthogonal_(self.weight, gain=0.1)

    def choose(self, tokens: Tokens) -> Assignment:
        """Choose one expert of each token.

        Raises:
            ValueError: If a prior forbids an expert while training: equal loads may need it.
        """
        scores = tokens.logits(self.weight)
        if self.training:
            if tokens.prior is not None and bool((tokens.prior == -torch.inf).any()):
                raise ValueError(
                    "a prior that forbids experts does not go with BASE routing, which gives every "
                    "expert the same load; use prior 'logits' with positive weights, or top-k"
                )
            experts = balanced_assignment(scores)
        else:
            experts = scores.argmax(-1)
        gates = torch.sigmoid(scores.gather(-1, experts[:, None]).squeeze(1))
        return Assignment(tokens.numbers(), experts, gates, torch.softmax(scores, dim=-1), scores)
