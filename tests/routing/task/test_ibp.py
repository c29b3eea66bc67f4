"""The Indian Buffet Process on probabilities, which are not 0 and 1, and as a distribution."""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from mttl.routing import negative_log_ibp


def formula(rows, alpha):
    """log p(Z) in plain Python, with the harmonic number of the tasks."""
    n_tasks = len(rows)
    columns = [column for column in zip(*rows, strict=True) if sum(column)]
    value = len(columns) * math.log(alpha)
    value -= sum(math.lgamma(count + 1) for count in Counter(columns).values())
    value -= alpha * sum(1 / task for task in range(1, n_tasks + 1))
    for column in columns:
        m = sum(column)
        value += math.lgamma(n_tasks - m + 1) + math.lgamma(m) - math.lgamma(n_tasks + 1)
    return value


@given(
    n_tasks=st.integers(1, 4),
    n_skills=st.integers(1, 7),
    alpha=st.floats(0.1, 10),
    seed=st.integers(0, 1000),
)
def test_probabilities_count_as_the_matrix_they_round_to(n_tasks, n_skills, alpha, seed):
    # Few tasks and many skills: equal columns occur, with unequal probabilities behind them.
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(n_tasks, n_skills, generator=generator)
    rows = [[int(p > 0.5) for p in row] for row in probabilities.tolist()]
    found = negative_log_ibp(probabilities, alpha).item()
    # float32: values of up to some tens.
    assert found == pytest.approx(-formula(rows, alpha), rel=1e-5, abs=1e-4)


def test_classes_of_three_tasks_follow_independent_poisson_counts():
    # The number of columns with history h is Poisson with mean alpha (T - m)! (m - 1)! / T!, so
    # the probabilities of all classes with at most `cut` columns each sum to a known number,
    # which tends to 1.
    alpha, cut, n_tasks = 0.8, 2, 3
    histories = [history for history in product((0, 1), repeat=n_tasks) if sum(history)]
    expected = 1.0
    for history in histories:
        m = sum(history)
        mean = alpha * math.factorial(n_tasks - m) * math.factorial(m - 1) / math.factorial(n_tasks)
        expected *= poisson(mean).cdf(cut)
    total = 0.0
    for counts in product(range(cut + 1), repeat=len(histories)):
        columns = [h for h, n in zip(histories, counts, strict=True) for _ in range(n)]
        matrix = torch.tensor(columns or [(0,) * n_tasks], dtype=torch.float64).t()
        total += math.exp(-negative_log_ibp(matrix, alpha).item())
    assert total == pytest.approx(expected, abs=1e-9)
    assert 0.97 < total < 1
