"""From an assignment to work: which rows each expert processes, and what it has no room for."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mttl.io.reading import exact_fraction
from mttl.routing.token.choice import Assignment


@dataclass(frozen=True)
class Dispatch:
    """The pairs of an assignment, sorted by expert.

    ``counts`` has the number of pairs of each expert.
    """

    tokens: Int[Tensor, "P"]
    weights: Float[Tensor, "P"]
    counts: Int[Tensor, "E"]


def sort_by_expert(assignment: Assignment) -> Dispatch:
    """Sort pairs by expert; those of one expert stay in their order."""
    order = assignment.experts.argsort(stable=True)
    return Dispatch(assignment.tokens[order], assignment.weights[order], assignment.counts())


def within_capacity(assignment: Assignment, capacity: int) -> Bool[Tensor, "P"]:
    """Say for which pairs the expert has room: its first ``capacity`` ones."""
    order = assignment.experts.argsort(stable=True)
    counts = assignment.counts()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts, output_size=len(order))
    place = torch.arange(len(order), device=order.device) - first  # within its expert
    return torch.empty_like(place, dtype=torch.bool).index_copy_(0, order, place < capacity)


def keep_pairs(assignment: Assignment, kept: Bool[Tensor, "P"]) -> Assignment:
    """Leave pairs out of an assignment."""
    return replace(
        assignment,
        tokens=assignment.tokens[kept],
        experts=assignment.experts[kept],
        weights=assignment.weights[kept],
    )


def capacity_of(n_pairs: int, n_experts: int, factor: float) -> int:
    """Return the room of an expert: ``factor`` times an even share of the pairs, rounded up."""
    return math.ceil(exact_fraction(factor, n_pairs) / n_experts)


def gate_matrix(assignment: Assignment) -> Float[Tensor, "N E"]:
    """Return the gate of every expert for every token, 0 where it was not chosen."""
    gates = assignment.weights.new_zeros(assignment.probabilities.shape)
    places = (assignment.tokens, assignment.experts)
    return gates.index_put(places, assignment.weights, accumulate=True)


def combine(y: Float[Tensor, "P O"], work: Dispatch, n_tokens: int) -> Float[Tensor, "N O"]:
    """Return, for each token, the sum of its pairs' outputs times their gates."""
    weighted = y * work.weights[:, None].to(y.dtype)
    return weighted.new_zeros(n_tokens, y.shape[1]).index_add(0, work.tokens, weighted)
