"""The interface of all routers that choose experts by token.

A token router sits in one layer and reads its hidden states; a task router
(`mttl.routing.task.task_router`) serves a whole model and reads task ids.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mttl.routing.token.balance import Balance


@dataclass(frozen=True)
class Assignment:
    """Which experts process which tokens: one row per pair of a token and an expert.

    Rows are in order of precedence: where an expert has room for a few pairs only, it keeps the
    first ones.

    Attributes:
        tokens: The token of each pair, below N; shape (P,).
        experts: The expert of each pair, below E; shape (P,).
        weights: The gate of each pair, float32, with gradient; shape (P,).
        probabilities: How likely each expert was for each token, float32; 0 for padding. Shape
            (N, E).
        losses: What the router owes to the objective, by name, coefficients included.
    """

    tokens: Int[Tensor, "P"]
    experts: Int[Tensor, "P"]
    weights: Float[Tensor, "P"]
    probabilities: Float[Tensor, "N E"]
    losses: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)

    def counts(self) -> Int[Tensor, "E"]:
        """Return how many tokens each expert received."""
        return torch.bincount(self.experts, minlength=self.probabilities.shape[1])


@dataclass(frozen=True)
class Choice:
    """What a kind of router decided for the tokens that are not padding.

    Attributes:
        tokens: As in `Assignment`, among the N tokens that were given.
        experts: As in `Assignment`.
        weights: As in `Assignment`.
        logits: What the softmax was taken of.
        probabilities: The softmax.
        load: A differentiable estimate of the tokens per expert, where the kind has one.
    """

    tokens: Int[Tensor, "P"]
    experts: Int[Tensor, "P"]
    weights: Float[Tensor, "P"]
    logits: Float[Tensor, "N E"]
    probabilities: Float[Tensor, "N E"]
    load: Float[Tensor, "E"] | None = None


class TokenRouter(nn.Module, ABC):
    """Maps the tokens of one layer to experts, in float32 whatever the input's dtype.

    Padding is taken out before anything is computed, so that it is neither routed nor counted.

    Args:
        in_features: Features I of a token.
        n_experts: Experts E.
        balance: Computes the losses that keep the experts in use; none by default.

    Attributes:
        causal: Whether a token's experts do not depend on later tokens of its text, as a decoder
            needs.
        needs_token_ids: Whether the kind routes by vocabulary entry.

    Raises:
        ValueError: If a size is not positive, or ``balance`` asks for what the kind cannot give.
    """

    role = "token_router"
    causal = True
    needs_token_ids = False
    estimates_load = False

    def __init__(self, in_features: int, n_experts: int, balance: Balance | None = None) -> None:
        super().__init__()
        for name, size in {"in_features": in_features, "n_experts": n_experts}.items():
            if size < 1:
                raise ValueError(f"{name} ({size}) must be at least 1")
        if balance is not None and balance.load and not self.estimates_load:
            raise ValueError(
                f"balance.load ({balance.load}) needs a router with an estimate of the load that "
                f"has a gradient, and {type(self).__name__} has none; use NoisyTopKRouter, or "
                "another loss"
            )
        self.in_features = in_features
        self.n_experts = n_experts
        self.balance = balance

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw the router's parameters anew."""

    @abstractmethod
    def choose(
        self,
        x: Float[Tensor, "N I"],
        *,
        prior: Float[Tensor, "N E"] | None = None,
        examples: Int[Tensor, "N"] | None = None,
        token_ids: Int[Tensor, "N"] | None = None,
    ) -> Choice:
        """Choose experts for tokens without padding; autocast is off and ``x`` is float32."""

    def forward(
        self,
        x: Float[Tensor, "N I"],
        *,
        mask: Bool[Tensor, "N"] | None = None,
        prior: Float[Tensor, "N E"] | None = None,
        examples: Int[Tensor, "N"] | None = None,
        token_ids: Int[Tensor, "N"] | None = None,
    ) -> Assignment:
        """Assign tokens to experts.

        Args:
            x: Hidden states, one row per token.
            mask: False for padding, which gets no expert and counts nowhere.
            prior: Added to the logits; minus infinity forbids an expert to a token.
            examples: The example of each token, for kinds that route whole examples.
            token_ids: The vocabulary entry of each token, for kinds that route by it.

        Raises:
            ValueError: If the prior forbids all experts to a token, or a kind is not given what
                it routes by.
        """
        n_tokens = len(x)
        kept = None if mask is None else mask.nonzero().squeeze(1)
        if kept is not None:
            x = x[kept]
            prior, examples, token_ids = (
                None if given is None else given[kept] for given in (prior, examples, token_ids)
            )
        with torch.autocast(x.device.type, enabled=False):
            prior = None if prior is None else prior.float()
            check_prior(prior)
            choice = self.choose(x.float(), prior=prior, examples=examples, token_ids=token_ids)
            losses = {} if self.balance is None or not self.training else self.balance(choice)
        assignment = Assignment(
            choice.tokens, choice.experts, choice.weights, choice.probabilities, losses
        )
        if kept is None:
            return assignment
        probabilities = choice.probabilities.new_zeros(n_tokens, self.n_experts)
        return replace(
            assignment,
            tokens=kept[choice.tokens],
            probabilities=probabilities.index_copy(0, kept, choice.probabilities),
        )

    @property
    def adjusts(self) -> bool:
        """Whether `adjust` does something."""
        return False

    def adjust(self, load: Float[Tensor, "E"] | Int[Tensor, "E"]) -> None:
        """Take note of the load of a step; only routers that balance without a loss do.

        A forward pass changes nothing that lasts, so that it can be computed again.

        Args:
            load: Pairs of each expert in the last step, of all passes and processes, before any
                were dropped.
        """

    def extra_repr(self) -> str:
        """Name the sizes in the module's printed form."""
        return f"in_features={self.in_features}, n_experts={self.n_experts}"


def router_logits(
    x: Float[Tensor, "N I"], weight: Float[Tensor, "E I"], prior: Float[Tensor, "N E"] | None
) -> Float[Tensor, "N E"]:
    """Return ``x Wᵀ`` in float32, with the prior added where there is one."""
    logits = x @ weight.float().t()
    return logits if prior is None else logits + prior


def check_prior(prior: Float[Tensor, "N E"] | None) -> None:
    """Refuse a prior that leaves a token without any expert.

    Raises:
        ValueError: If a row is minus infinity everywhere.
    """
    if prior is None:
        return
    forbidden = (prior == -torch.inf).all(dim=-1)
    if forbidden.any():
        raise ValueError(
            f"the prior forbids all {prior.shape[1]} experts to {int(forbidden.sum())} of "
            f"{len(prior)} tokens; leave at least one of each row above minus infinity"
        )


def draw_router(weight: Float[Tensor, "E I"], scale: float) -> None:
    """Draw a router's weight in place from a normal distribution of variance ``scale / I``.

    Small logits at first leave all experts a chance; 0.1 is the scale of the Switch Transformer.
    """
    nn.init.normal_(weight, std=(scale / weight.shape[1]) ** 0.5)
