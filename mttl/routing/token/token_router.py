"""The interface of token routers, which choose experts in one layer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.io.errors import require_at_least
from mttl.plugins.part_settings import Bounded
from mttl.routing.token.balance import Balance, BiasBalance
from mttl.routing.token.choice import Assignment, Tokens

# Features that are missing for routers with equal loads.
EVEN: Mapping[str, Any] = {
    "balances": "all experts have equal loads; set all weights of moe.balance to 0",
    "drops_tokens": "loads are equal; remove moe.capacity_factor and moe.eval_capacity_factor",
}


class TokenRouter(Bounded, nn.Module, ABC):
    """Maps the tokens of one layer to experts, in float32 for any input dtype.

    Padding is removed before routing.

    Args:
        in_features: Features I of a token.
        n_experts: Number of experts E.
        balance: Balancing losses; none by default.

    Attributes:
        causal: Whether a token's experts are independent of later tokens, as decoders require.
        needs_token_ids: Whether the kind routes by vocabulary entry.
        bias: Balancing bias without a loss, if the kind has one.
    """

    lacks: ClassVar[Mapping[str, Any]] = {
        "estimates_load": "it does not estimate loads; set moe.router.kind: noisy_top_k",
        "takes_bias": "it cannot use a bias; set moe.router.kind: top_k or switch",
    }
    role = "token_router"
    causal = True
    needs_token_ids = False

    def __init__(self, in_features: int, n_experts: int, *, balance: Balance | None = None) -> None:
        super().__init__()
        require_at_least(1, in_features=in_features, n_experts=n_experts)
        self.in_features, self.n_experts, self.balance = in_features, n_experts, balance
        self.bias: BiasBalance | None = None

    @abstractmethod
    def reset_parameters(self) -> None:
        """Re-initialise the router's parameters."""

    @abstractmethod
    def choose(self, tokens: Tokens) -> Assignment:
        """Return the experts of tokens, which are float32 without padding; autocast is off."""

    def forward(self, tokens: Tokens) -> Assignment:
        """Return the assignment of tokens to experts; the prior must allow each token one."""
        kept = None if tokens.mask is None else tokens.mask.nonzero().squeeze(1)
        with torch.autocast(tokens.states.device.type, enabled=False):
            given = tokens.select(kept)
            check_prior(given.prior)
            choice = self.choose(given)
            balance = self.balance if self.training else None
            losses = {} if balance is None else balance(choice, given)
        assignment = replace(choice, logits=None, load=None, losses=losses)
        if kept is None:
            return assignment
        probabilities = choice.probabilities.new_zeros(len(tokens), self.n_experts)
        return replace(
            assignment,
            tokens=kept[choice.tokens],
            probabilities=probabilities.index_copy(0, kept, choice.probabilities),
        )

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, n_experts={self.n_experts}"


class LinearRouter(TokenRouter):
    """A token router with logits ``W x``.

    Args:
        init_scale: Scale of the weight's initial variance, ``init_scale / in_features``; small
            logits favour exploration. The Switch Transformer uses 0.1.
    """

    internal = ("init_scale",)

    def __init__(
        self, in_features: int, n_experts: int, *, init_scale: float = 0.1, **settings: Any
    ) -> None:
        super().__init__(in_features, n_experts, **settings)
        self.init_scale = init_scale
        self.weight = nn.Parameter(torch.empty(n_experts, in_features))
        LinearRouter.reset_parameters(self)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=(self.init_scale / self.in_features) ** 0.5)


def token_layers(module: nn.Module) -> dict[str, Any]:
    """Return the layers of a module that route tokens, by their path."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer._modules.get("router"), TokenRouter)  # not by `__getattr__`
    }


def check_prior(prior: Float[Tensor, "N E"] | None) -> None:
    """Raise ValueError if a prior excludes all experts for a token."""
    if prior is None:
        return
    forbidden = (prior == -torch.inf).all(dim=-1)
    if forbidden.any():
        raise ValueError(
            f"moe.task_prior excludes all {prior.shape[1]} experts for {int(forbidden.sum())} of "
            f"{len(prior)} tokens; every task needs an allowed expert"
        )
