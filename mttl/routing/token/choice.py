"""Input and output of token routers: tokens, and their assignment to experts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mttl.io.reading import exact_fraction


@dataclass(frozen=True)
class Tokens:
    """N tokens with their hidden states, mask, prior, examples and ids."""

    states: Float[Tensor, "N I"]
    mask: Bool[Tensor, "N"] | None = None  # False for padding, which gets no expert
    # Bias of the logits; minus infinity excludes an expert for a token.
    prior: Float[Tensor, "N E"] | None = None
    examples: Int[Tensor, "N"] | None = None  # for routers of whole examples
    ids: Int[Tensor, "N"] | None = None  # vocabulary entries, for routers of them
    own: Bool[Tensor, "N E"] | None = None  # experts of a token's task, for a balancing loss

    def __len__(self) -> int:
        """Return N."""
        return len(self.states)

    def numbers(self) -> Int[Tensor, "N"]:
        """Return 0 to N - 1."""
        return torch.arange(len(self), device=self.states.device)

    def logits(self, weight: Float[Tensor, "E I"]) -> Float[Tensor, "N E"]:
        """Return ``x Wᵀ`` in float32, plus the prior if there is one."""
        logits = self.states @ weight.float().t()
        return logits if self.prior is None else logits + self.prior

    def select(self, kept: Int[Tensor, "n"] | None) -> "Tokens":
        """Return some of the tokens, or all for None, in float32 and without a mask."""
        prior, *others = (
            given if given is None or kept is None else given[kept]
            for given in (self.prior, self.examples, self.ids, self.own)
        )
        states = self.states if kept is None else self.states[kept]
        return Tokens(states.float(), None, None if prior is None else prior.float(), *others)


@dataclass(frozen=True)
class Assignment:
    """Pairs of tokens and experts, in order of precedence for experts of limited capacity."""

    tokens: Int[Tensor, "P"]  # below N
    experts: Int[Tensor, "P"]  # below E
    weights: Float[Tensor, "P"]  # gates, float32, with gradient
    probabilities: Float[Tensor, "N E"]  # float32; 0 for padding
    logits: Float[Tensor, "N E"] | None = None  # of the softmax, for losses
    load: Float[Tensor, "E"] | None = None  # differentiable estimate of the tokens per expert
    losses: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)  # with coefficients

    def counts(self) -> Int[Tensor, "E"]:
        """Return the number of tokens of each expert."""
        return torch.bincount(self.experts, minlength=self.probabilities.shape[1])


@dataclass(frozen=True)
class Dispatch:
    """The pairs of an assignment, sorted by expert."""

    tokens: Int[Tensor, "P"]
    weights: Float[Tensor, "P"]
    counts: Int[Tensor, "E"]  # pairs of each expert


def sort_by_expert(assignment: Assignment) -> Dispatch:
    """Return the pairs sorted by expert, in stable order."""
    order = assignment.experts.argsort(stable=True)
    return Dispatch(assignment.tokens[order], assignment.weights[order], assignment.counts())


def within_capacity(assignment: Assignment, capacity: int) -> Bool[Tensor, "P"]:
    """Return whether each pair is among the first ``capacity`` ones of its expert."""
    order = assignment.experts.argsort(stable=True)
    counts = assignment.counts()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts, output_size=len(order))
    place = torch.arange(len(order), device=order.device) - first  # within its expert
    return torch.empty_like(place, dtype=torch.bool).index_copy_(0, order, place < capacity)


def keep_pairs(assignment: Assignment, kept: Bool[Tensor, "P"]) -> Assignment:
    """Return an assignment with some of the pairs."""
    return replace(
        assignment,
        tokens=assignment.tokens[kept],
        experts=assignment.experts[kept],
        weights=assignment.weights[kept],
    )


def capacity_of(n_pairs: int, n_experts: int, factor: float) -> int:
    """Return the capacity of an expert: ``factor`` times an even share of pairs, rounded up."""
    return math.ceil(exact_fraction(factor, n_pairs) / n_experts)


def gate_matrix(assignment: Assignment) -> Float[Tensor, "N E"]:
    """Return the gate of every expert for every token; 0 for experts that were not chosen."""
    gates = assignment.weights.new_zeros(assignment.probabilities.shape)
    places = (assignment.tokens, assignment.experts)
    return gates.index_put(places, assignment.weights, accumulate=True)


def combine(y: Float[Tensor, "P O"], work: Dispatch, n_tokens: int) -> Float[Tensor, "N O"]:
    """Return for each token the sum of its pairs' outputs, weighted by their gates."""
    weighted = y * work.weights[:, None].to(y.dtype)
    return weighted.new_zeros(n_tokens, y.shape[1]).index_add(0, work.tokens, weighted)
