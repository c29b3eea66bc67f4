"""What a token router decides: which experts process which tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
        losses: Auxiliary losses by name, coefficients included.
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
class RoutingDecision:
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
