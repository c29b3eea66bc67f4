"""Noisy top-k routing: trained noise explores, and makes the load differentiable."""

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.io.errors import require_at_most
from mttl.plugins.part_settings import PositiveInt
from mttl.routing.token.balance import Balance
from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.token_router import TokenRouter
from mttl.routing.token.top_k import top_choice

SMALLEST_NOISE = 1e-2


class NoisyTopKRouter(TokenRouter):
    r"""Sends each token to its best experts by logits with learned noise (Shazeer et al.).

    While training, :math:`h = W_g x + \epsilon \odot \sigma` with
    :math:`\sigma = \mathrm{softplus}(W_n x) + 10^{-2}` and standard normal :math:`\epsilon`; in
    evaluation :math:`h = W_g x`. Gates are the softmax over the ``top_k`` largest entries of h. The
    load of expert e is estimated by the probability that it is chosen if only its noise is drawn
    again, :math:`\sum_x \Phi((W_g x - t_e(x)) / \sigma)_e`, where :math:`t_e` is the
    ``top_k``-th largest entry of h without e.

    Args:
        top_k: Experts per token.
        balance: As in `TokenRouter`; may have a load loss.

    Raises:
        ValueError: If ``top_k`` is above E - 1.

    References:
        Shazeer et al., *Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
        Layer*, ICLR 2017, arXiv:1701.06538.
    """

    lacks: ClassVar = {"estimates_load": ""}

    def __init__(
        self,
        in_features: int,
        n_experts: int,
        *,
        top_k: PositiveInt = 2,
        balance: Balance | None = None,
    ) -> None:
        super().__init__(in_features, n_experts, balance)
        # The estimate of the load compares with the first expert that is not chosen.
        require_at_most("n_experts - 1", n_experts - 1, top_k=top_k)
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(n_experts, in_features))
        self.noise_weight = nn.Parameter(torch.empty(n_experts, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both weights to 0: at first, noise alone decides."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.noise_weight)

    def choose(self, tokens: Tokens) -> Assignment:
        """Choose the best experts of each token by noisy logits."""
        clean = tokens.logits(self.weight)
        noisy, load = clean, None
        if self.training:
            spread = nn.functional.softplus(tokens.states @ self.noise_weight.float().t())
            deviation = spread + SMALLEST_NOISE
            noisy = clean + torch.randn_like(clean) * deviation
            load = expected_load(clean, noisy, deviation, self.top_k).sum(0)
        chosen = noisy.topk(self.top_k, dim=-1).indices
        choice = top_choice(noisy, chosen, normalise=True, forbids=tokens.prior is not None)
        return choice if load is None else replace(choice, load=load)


def expected_load(
    clean: Float[Tensor, "N E"],
    noisy: Float[Tensor, "N E"],
    deviation: Float[Tensor, "N E"],
    top_k: int,
) -> Float[Tensor, "N E"]:
    """Return the probability that each expert is chosen if only its noise is drawn again."""
    best = noisy.topk(top_k + 1, dim=-1).values
    last, next_best = best[:, -2:-1], best[:, -1:]
    # Without a chosen expert, the one after the last chosen becomes the last.
    threshold = torch.where(noisy >= last, next_best, last)
    # Fewer rivals than places: an allowed expert is always chosen, a forbidden one never.
    margin = torch.where(clean > -torch.inf, clean - threshold, clean).clamp(-1e9, 1e9)
    return torch.special.ndtr(margin / deviation)
