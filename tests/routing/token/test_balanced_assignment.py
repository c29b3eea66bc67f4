"""Balanced assignment is balanced and optimal."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from mttl.routing.token.base import balanced_assignment


def total(scores: torch.Tensor, columns: torch.Tensor) -> float:
    return float(scores.double().gather(1, columns[:, None]).sum())


def optimum(scores: torch.Tensor) -> float:
    """The best total, trying every choice of columns that get one row more."""
    from itertools import combinations

    n, e = scores.shape
    best = -np.inf
    for more in combinations(range(e), n % e):
        places = [c for c in range(e) for _ in range(n // e + (c in more))]
        matrix = scores.double().numpy()[:, places]
        rows, columns = linear_sum_assignment(matrix, maximize=True)
        best = max(best, matrix[rows, columns].sum())
    return float(best)


@given(st.integers(1, 25), st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_balanced_and_optimal(n: int, e: int, seed: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, e, generator=generator)
    if biased:  # everybody likes the same columns
        scores = scores * 0.1 + torch.arange(e) * 5.0
    best = optimum(scores)
    assert balanced_assignment(torch.zeros(0, e)).tolist() == []
    columns = balanced_assignment(scores)
    counts = torch.bincount(columns, minlength=e)
    assert counts.min() >= n // e
    assert counts.max() <= -(-n // e)
    assert total(scores, columns) >= best - 1e-9  # rounding of sums of at most 25 scores
