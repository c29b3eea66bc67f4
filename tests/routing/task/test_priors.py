import math
from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson
from sklearn.metrics import mutual_info_score

from mttl.routing.task.priors import (
    IBP,
    RoutingPrior,
    column_similarity,
    mutual_information,
    negative_log_ibp,
)


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
    probabilities = torch.rand(n_tasks, n_skills, generator=generator, dtype=torch.float64)
    rows = [[int(p > 0.5) for p in row] for row in probabilities.tolist()]
    found = negative_log_ibp(probabilities, alpha).item()
    assert found == pytest.approx(-formula(rows, alpha), abs=1e-9)


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


def test_gradient_is_that_of_the_column_terms():
    probabilities = torch.tensor([[0.9, 0.2], [0.8, 0.7], [0.1, 0.6]], dtype=torch.float64)
    probabilities.requires_grad_()
    negative_log_ibp(probabilities, 3.0).backward()
    sums, step, n = torch.tensor([2.0, 2.0], dtype=torch.float64), 1e-6, 3

    def term(m):
        return -(torch.lgamma(n - m + 1) + torch.lgamma(m))

    slope = (term(sums + step) - term(sums - step)) / (2 * step)
    torch.testing.assert_close(probabilities.grad, slope.expand(3, 2), rtol=1e-6, atol=1e-6)


def test_mutual_information_equals_scikit_learn():
    # Task t uses skill k with the given counts: as many rows of a table.
    counts = torch.tensor([[3, 1, 0], [0, 2, 2]])
    tasks = [t for t in range(2) for k in range(3) for _ in range(int(counts[t, k]))]
    skills = [k for t in range(2) for k in range(3) for _ in range(int(counts[t, k]))]
    found = mutual_information(counts.double()[None])
    assert found.item() == pytest.approx(mutual_info_score(tasks, skills), abs=1e-9)


def test_column_similarity():
    assert column_similarity(torch.eye(3)[None]).item() == 0
    assert column_similarity(torch.ones(1, 3, 2)).item() == pytest.approx(1)
    assert column_similarity(torch.ones(1, 3, 1)).item() == 0
    columns = torch.tensor([[1.0, 1.0], [0.0, 1.0]])[None]  # cosine of 45 degrees
    assert column_similarity(columns).item() == pytest.approx(0.5)


def test_prior_adds_its_terms():
    probabilities = torch.rand(2, 4, 3, 5)
    terms = {
        "ibp": IBP(weight=0.3),
        "sparsity": 0.5,
        "mutual_information": 0.7,
        "orthogonality": 0.9,
    }
    apart = sum(RoutingPrior(**{name: weight})(probabilities) for name, weight in terms.items())
    torch.testing.assert_close(RoutingPrior(**terms)(probabilities), apart)
    assert RoutingPrior()(probabilities) == 0
    torch.testing.assert_close(RoutingPrior(sparsity=2.0)(probabilities), 2 * probabilities.mean())
    by_hand = sum(negative_log_ibp(probabilities[g, :, h], 5.0) for g in range(2) for h in range(3))
    torch.testing.assert_close(RoutingPrior(ibp=IBP(weight=1.0))(probabilities), by_hand)
