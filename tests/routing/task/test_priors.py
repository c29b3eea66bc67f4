import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from mttl.routing.task.priors import (
    IBP,
    RoutingPrior,
    column_similarity,
    mutual_information,
    negative_log_ibp,
)


def direct_log_ibp(rows, alpha):
    """The formula of Griffiths and Ghahramani, term by term."""
    n_tasks = len(rows)
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    harmonic = sum(1 / n for n in range(1, n_tasks + 1))
    total = len(columns) * math.log(alpha) - alpha * harmonic
    for count in Counter(columns).values():
        total -= math.log(math.factorial(count))
    for column in columns:
        m = sum(column)
        total += math.log(
            math.factorial(n_tasks - m) * math.factorial(m - 1) / math.factorial(n_tasks)
        )
    return total


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 5).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(0, 1), min_size=k, max_size=k), min_size=1, max_size=5
        )
    ),
    st.floats(0.2, 8),
)
def test_ibp_equals_the_formula(rows, alpha):
    found = negative_log_ibp(torch.tensor(rows, dtype=torch.float64), alpha)
    assert found.item() == pytest.approx(-direct_log_ibp(rows, alpha), abs=1e-9)


def test_gradient_is_that_of_the_column_terms():
    probabilities = torch.tensor([[0.9, 0.2], [0.8, 0.7], [0.1, 0.6]], dtype=torch.float64)
    probabilities.requires_grad_()
    negative_log_ibp(probabilities, 3.0).backward()
    sums, step, n = torch.tensor([2.0, 2.0], dtype=torch.float64), 1e-6, 3

    def term(m):
        return -(torch.lgamma(n - m + 1) + torch.lgamma(m))

    slope = (term(sums + step) - term(sums - step)) / (2 * step)
    torch.testing.assert_close(probabilities.grad, slope.expand(3, 2), rtol=1e-6, atol=1e-6)


def test_unused_skills_and_empty_matrices():
    empty = torch.full((3, 2), 0.1, dtype=torch.float64, requires_grad=True)
    loss = negative_log_ibp(empty, 2.0)
    assert loss.item() == pytest.approx(2.0 * (1 + 1 / 2 + 1 / 3))


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
