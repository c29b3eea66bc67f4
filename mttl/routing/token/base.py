"""BASE routing: balanced assignment of tokens to experts in training."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mttl.routing.token.choice import Assignment, Tokens
from mttl.routing.token.token_router import EVEN, TokenRouter


class BaseRouter(TokenRouter):
    r"""Sends each token to one expert: by balanced assignment in training, else to its best.

    With affinities :math:`s = W x`, training maximises :math:`\sum_n s_{n, a(n)}` under equal loads
    (without a gradient); evaluation takes :math:`a(n) = \arg\max_e s_{n,e}`. The gate is
    :math:`\sigma(s_{n, a(n)})`. It needs and has no balancing loss.

    References:
        Lewis, Bhosale, Dettmers, Goyal and Zettlemoyer, *BASE Layers: Simplifying Training of
        Large, Sparse Models*, ICML 2021, arXiv:2103.16716.
    """

    lacks: ClassVar = {
        **EVEN,
        "policies": "its assignment is too slow for thousands of positions; set {path}.kind: top_k",
    }

    def __init__(self, in_features: int, n_experts: int) -> None:
        super().__init__(in_features, n_experts)
        self.weight = nn.Parameter(torch.empty(n_experts, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight, gain=0.1)

    def choose(self, tokens: Tokens) -> Assignment:
        scores = tokens.logits(self.weight)
        experts = balanced_assignment(scores) if self.training else scores.argmax(-1)
        gates = torch.sigmoid(scores.gather(-1, experts[:, None]).squeeze(1))
        return Assignment(tokens.numbers(), experts, gates, torch.softmax(scores, dim=-1), scores)


def balanced_assignment(scores: Float[Tensor, "N E"]) -> Int[Tensor, "N"]:
    r"""Return the column of each row that maximises :math:`\sum_n s_{n, a(n)}`.

    Each column gets :math:`\lfloor N / E \rfloor` rows, and :math:`N \bmod E` of them one more. The
    result is exact; the solver runs on the CPU. A score that is not finite is a ValueError.
    """
    if not bool(torch.isfinite(scores).all()):
        raise ValueError(
            "scores must be finite: with equal loads any token may go to any expert. Set "
            "moe.task_prior: logits with weights above 0, or moe.router.kind: top_k"
        )
    n_rows, n_columns = scores.shape
    if n_rows == 0:
        return torch.zeros(0, dtype=torch.long, device=scores.device)
    scores = scores.detach().double()
    squared = square_scores(scores)
    # All slots are taken, so prices change only the total. The solver is many times faster if the
    # demand for columns is even.
    squared -= even_prices(scores).repeat(squared.shape[1] // n_columns)
    from scipy.optimize import linear_sum_assignment  # slow to import, and rarely needed

    _, slots = linear_sum_assignment(squared.cpu().numpy(), maximize=True)
    return torch.as_tensor(slots, device=scores.device)[:n_rows] % n_columns


def square_scores(scores: Float[Tensor, "N E"]) -> Float[Tensor, "M M"]:
    """Return a square score matrix: slots of columns, and filler rows for the last slots only.

    Slot m belongs to column m % E. Filler rows score 0 in the last slot of a column.
    """
    n_rows, n_columns = scores.shape
    n_places = -(-n_rows // n_columns)
    places = scores.repeat(1, n_places)
    n_missing = places.shape[1] - n_rows
    # So low that no exchange of rows compensates it.
    never = -(scores.max() - scores.min() + 1) * (places.shape[1] + 1)
    filler = scores.new_full((n_missing, places.shape[1]), float(never))
    filler[:, -n_columns:] = 0
    return torch.cat([places, filler])


def even_prices(scores: Float[Tensor, "N E"], n_rounds: int = 30) -> Float[Tensor, "E"]:
    """Return prices with about equal demand for each column, by Sinkhorn iterations.

    References:
        Cuturi, *Sinkhorn Distances: Lightspeed Computation of Optimal Transport*, NIPS 2013,
        arXiv:1306.0895.
    """
    prices = scores.new_zeros(scores.shape[1])
    blur = 0.05 * (scores - scores.mean(0)).abs().mean() + 1e-9
    for _ in range(n_rounds):
        wanted = torch.log_softmax((scores - prices) / blur, dim=1).logsumexp(0)
        prices = prices + blur * (wanted - wanted.mean())
    return prices
