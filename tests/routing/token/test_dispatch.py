"""From an assignment to work."""

from fractions import Fraction

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mttl.routing.token.choice import (
    Assignment,
    capacity_of,
    gate_matrix,
    keep_pairs,
    within_capacity,
)


def assignment() -> Assignment:
    return Assignment(
        tokens=torch.tensor([0, 1, 2, 3, 0, 1]),
        experts=torch.tensor([2, 0, 2, 2, 0, 2]),
        weights=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        probabilities=torch.zeros(4, 3),
    )


def test_an_expert_keeps_its_first_pairs() -> None:
    kept = within_capacity(assignment(), 2)
    assert kept.tolist() == [True, True, True, False, True, False]
    left = keep_pairs(assignment(), kept)
    assert left.tokens.tolist() == [0, 1, 2, 0]
    assert left.counts().tolist() == [2, 0, 2]
    assert not within_capacity(assignment(), 0).any()
    assert within_capacity(assignment(), 4).all()


# Exactly 11, though the float nearest to 1.1 lies above it.
@example(50, 5, 11, 1)
@given(
    st.integers(0, 100_000), st.integers(1, 256), st.integers(1, 5000), st.sampled_from([1, 2, 3])
)
def test_capacity_is_exact_for_the_factor_that_was_written(n_pairs, n_experts, digits, places):
    factor = Fraction(digits, 10**places)
    exact = -(-factor * n_pairs // n_experts)
    assert capacity_of(n_pairs, n_experts, float(factor)) == exact


def test_gates_as_a_matrix() -> None:
    assert gate_matrix(assignment()).tolist() == [
        [5.0, 0.0, 1.0],
        [2.0, 0.0, 6.0],
        [0.0, 0.0, 3.0],
        [0.0, 0.0, 4.0],
    ]
