"""Evolution reproduces optima that are known."""

import math

import pytest
import torch

from mttl.adaptation.evolution import evolve


def lasso(seed: int, n: int, penalty: float):
    """Return a convex objective, and its optimum by many steps of proximal gradient descent."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(30, n, generator=generator, dtype=torch.double)
    targets = features @ torch.linspace(-1.0, 1.0, n).double() + 0.1

    def objective(weights: torch.Tensor) -> float:
        error = features @ weights.double() - targets
        return float((error**2).mean() + penalty * weights.abs().mean())

    size = float(torch.linalg.matrix_norm(features, 2) ** 2 * 2 / len(features))
    weights = torch.zeros(n, dtype=torch.double)
    for _ in range(3000):
        gradient = 2 / len(features) * features.t() @ (features @ weights - targets)
        moved = weights - gradient / size
        weights = moved.sign() * (moved.abs() - penalty / n / size).clamp_min(0)
    return objective, weights


@pytest.mark.parametrize(("n", "penalty"), [(2, 0.05), (5, 0.05), (5, 3.0), (12, 0.05)])
def test_the_optimum_of_a_convex_objective_with_an_l1_penalty(n: int, penalty: float) -> None:
    """The form of LoraHub's objective: a smooth loss, and the mean absolute coefficient."""
    objective, expected = lasso(n, n, penalty)
    torch.manual_seed(0)
    found, value = evolve(objective, torch.zeros(n), n_evaluations=300 * n, bound=1.5)
    assert value == objective(found)
    assert value - objective(expected) < 1e-5
    torch.testing.assert_close(found, expected.float(), atol=5e-3, rtol=0)


def test_one_number_and_a_bound() -> None:
    torch.manual_seed(0)
    found, _ = evolve(lambda w: float((w - 3) ** 2), torch.zeros(1), n_evaluations=400, bound=1.5)
    assert float(found) == 1.5


def test_the_start_is_kept_where_nothing_is_better_and_the_budget_holds() -> None:
    asked = []

    def objective(weights: torch.Tensor) -> float:
        asked.append(weights)
        return 0.0 if not weights.any() else math.nan

    found, value = evolve(objective, torch.zeros(3), n_evaluations=40, bound=1.0)
    assert not found.any()
    assert value == 0.0
    assert len(asked) == 40
    assert all(bool((weights.abs() <= 1).all()) for weights in asked)
    assert evolve(lambda w: 2.0, torch.ones(2), n_evaluations=1, bound=1.5)[1] == 2.0


def test_a_budget_below_one_generation_tries_as_many_as_it_has() -> None:
    """Where everything is better than the start, three tries find something."""
    torch.manual_seed(0)
    found, value = evolve(lambda w: float(not w.any()), torch.zeros(8), n_evaluations=3, bound=1.5)
    assert value == 0.0
    assert found.any()
