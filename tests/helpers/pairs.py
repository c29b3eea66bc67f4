"""Assignments of tokens to experts, random and degenerate, and the loop that defines their sum."""

from collections.abc import Callable

import torch
from torch import Tensor

from mttl.routing.token.choice import Assignment

N, E = 12, 4


def ones(experts: list[int]) -> Assignment:
    """One pair per token."""
    n = len(experts)
    return Assignment(
        torch.arange(n), torch.tensor(experts, dtype=torch.long), torch.rand(n), torch.zeros(n, E)
    )


def random_pairs() -> Assignment:
    tokens, experts = (torch.rand(N, E) < 0.5).nonzero(as_tuple=True)
    order = torch.randperm(len(tokens))
    return Assignment(tokens[order], experts[order], torch.rand(len(order)), torch.zeros(N, E))


ASSIGNMENTS: dict[str, Callable[[], Assignment]] = {
    "random": random_pairs,
    "all to one": lambda: ones([2] * N),
    "one without": lambda: ones([0, 1, 3] * (N // 3)),
    "one token": lambda: ones([1]),
    "no token": lambda: ones([]),
}


def loop_over_pairs(
    alone: Callable[[Tensor, int], Tensor], x: Tensor, given: Assignment, out_features: int
) -> Tensor:
    """Return the sum over pairs of gate times what an expert alone makes of a token."""
    rows = [x.new_zeros(out_features) for _ in x]
    for token, expert, weight in zip(given.tokens, given.experts, given.weights, strict=True):
        rows[token] = rows[token] + weight * alone(x[token], int(expert))
    return torch.stack(rows) if rows else x.new_zeros(0, out_features)


def feed_forward(experts, x: Tensor, e: int) -> Tensor:
    """One expert's block, by the formula."""
    hidden = x @ experts.up[e].t()
    if experts.up_bias is not None:
        hidden = hidden + experts.up_bias[e]
    if experts.gated:
        half = experts.hidden_features
        hidden = experts.activation(hidden[:half]) * hidden[half:]
    else:
        hidden = experts.activation(hidden)
    y = hidden @ experts.down[e].t()
    return y if experts.down_bias is None else y + experts.down_bias[e]
