"""Top-2 routing with a second expert by chance."""

import torch

from mttl.io.errors import require_at_least
from mttl.plugins.part_settings import Positive
from mttl.routing.token.balance import Balance
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.dispatch import keep_pairs
from mttl.routing.token.token_router import LinearRouter
from mttl.routing.token.top_k import top_choice


class GShardRouter(LinearRouter):
    r"""Sends each token to its best expert, and to its second best by chance.

    The gates are :math:`g_1, g_2`, the two largest probabilities divided by their sum. While
    training the second expert is kept with probability :math:`\min(1, g_2 / \tau)`; in evaluation
    where :math:`g_2 > \tau`. A token that loses it keeps :math:`g_1` as it was.

    Args:
        threshold: A second gate of at least this is always taken.
        balance: As in `TokenRouter`.

    Raises:
        ValueError: If there are fewer than 2 experts.

    References:
        Lepikhin et al., *GShard: Scaling Giant Models with Conditional Computation and Automatic
        Sharding*, ICLR 2021, arXiv:2006.16668.
    """

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        threshold: Positive = 0.2,
        balance: Balance | None = None,
    ) -> None:
        super().__init__(in_features, n_experts, balance)
        require_at_least(2, n_experts=n_experts)
        self.threshold = threshold

    def choose(self, tokens: Tokens) -> Assignment:
        """Choose two experts of each token and drop second ones by chance."""
        logits = tokens.logits(self.weight)
        chosen = logits.topk(2, dim=-1).indices
        choice = top_choice(logits, chosen, normalise=True, forbids=tokens.prior is not None)
        weights = choice.weights.detach()
        level = torch.rand_like(weights) if self.training else torch.ones_like(weights)
        kept = weights > level * self.threshold
        kept[: len(tokens)] = True  # first choices come first
        return keep_pairs(choice, kept)
