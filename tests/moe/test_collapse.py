"""Balancing prevents collapse on a problem built to collapse.

Tokens of eight clusters, each to be multiplied by a matrix of its cluster. The router starts with a
strong liking for two of the eight experts, and the gradient of a gate reaches chosen experts only:
without balancing the others never learn anything.
"""

import math

import pytest
import torch

from mttl.moe import FeedForwardExperts
from mttl.routing import Balance, BiasBalance, NoisyTopKRouter, TokenRouter, Tokens, TopKRouter

E, I, STEPS = 8, 16, 100  # noqa: E741


def usage_entropy(router: TokenRouter) -> float:
    """Train, and return the entropy of the experts' use as a share of its maximum."""
    centres, maps = 2 * torch.randn(E, I), torch.randn(E, I, I) / 4
    experts = FeedForwardExperts(I, 32, I, E)
    with torch.no_grad():  # all tokens share a direction, and two experts like it
        centres[:, 0] = 4.0
        router.weight[:2, 0] += 1.0
    optimizer = torch.optim.Adam([*router.parameters(), *experts.parameters()], lr=5e-3)
    loads = torch.zeros(E)
    for step in range(STEPS):
        cluster = torch.arange(64) % E
        x = centres[cluster] + 0.3 * torch.randn(64, I)
        target = torch.einsum("nij,nj->ni", maps[cluster], x)
        assignment = router(Tokens(x))
        owed = sum(assignment.losses.values())
        loss = (experts.dispatch(x, assignment) - target).square().mean() + owed
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if router.bias is not None:
            router.bias.adjust(assignment.counts())
        if step >= STEPS - 20:
            loads += assignment.counts()
    share = loads / loads.sum()
    return float(torch.special.entr(share).sum()) / math.log(E)


ROUTERS = {
    "switch": lambda: TopKRouter(I, E, balance=Balance(switch=1.0)),
    # Gradients of gates reach chosen experts only; it takes the load, or noise, to find others.
    "load": lambda: NoisyTopKRouter(I, E, balance=Balance(importance=1.0, load=1.0)),
    "bias": lambda: TopKRouter(I, E, bias=BiasBalance(E, rate=0.05)),
    "none": lambda: TopKRouter(I, E),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ROUTERS)
def test_experts_collapse_without_balancing_alone(name: str) -> None:
    entropy = usage_entropy(ROUTERS[name]())
    assert entropy < 0.7 if name == "none" else entropy >= 0.9
