"""LoraHub's coefficients on a model, and those of LoRA soups."""

import math

import pytest
import torch
from transformers import ByT5Tokenizer

from helpers.adapted import BATCH
from helpers.backbones import tiny_t5
from helpers.modes import adapted
from helpers.skills import skilled
from mttl.adaptation import gradient_free
from mttl.adaptation.gradient_free import compose, evolve
from mttl.adaptation.modes import apply_mode
from mttl.io.errors import DivergedError
from mttl.routing import CoefficientRouter
from mttl.skills import SkilledModel
from mttl.training.text_to_text import TextToTextModule


def objective(model: SkilledModel, coefficients: torch.Tensor) -> float:
    """By the backbone's own loss: a plain forward pass."""
    model.router.rows.data.copy_(coefficients.expand_as(model.router.rows))
    inputs = {name: value for name, value in BATCH.items() if name != "task_ids"}
    with torch.no_grad():
        loss = model(BATCH["task_ids"], **inputs).loss
    return float(loss) + 0.05 * float(coefficients.abs().mean())


@pytest.mark.every(2)
@pytest.mark.parametrize("inventory", ["lora-factors", "lora-outputs"])
def test_coefficients_are_the_best_of_those_that_were_tried(inventory: str, monkeypatch) -> None:
    monkeypatch.setattr(gradient_free, "score_batches", lambda *given: (0.5, []))
    model = skilled(tiny_t5(), inventory=inventory)
    skills = {name: value.clone() for name, value in model.state_dict().items()}
    with adapted(model, "router_only", init="coefficients") as one:
        module = TextToTextModule(one, ByT5Tokenizer(), {"new": "EM"})
        torch.manual_seed(0)
        steps: list[int] = []
        found = compose(module, [BATCH], [], n_evaluations=60, on_step=lambda: steps.append(1))
        assert found == (60, 0.5, [])
        assert len(steps) == 60
        rows = one.router.rows.detach().clone()
        assert torch.equal(rows, rows[:1].expand_as(rows))
        best = rows[0, 0, 0]
        assert bool((best.abs() <= 1.5).all())
        least = objective(one, best)
        assert least < objective(one, torch.zeros(3)) - 0.01
        # A convex neighbourhood of the optimum, or nearly: small moves do not make it smaller.
        for sign in (-1, 1):
            for k in range(3):
                moved = best + 0.3 * sign * torch.eye(3)[k]
                if bool((moved.abs() <= 1.5).all()):
                    assert objective(one, moved) > least - 0.05
    assert all(torch.equal(model.state_dict()[name], value) for name, value in skills.items())


def test_skills_that_are_not_finite_end_the_search() -> None:
    with adapted(skilled(tiny_t5()), "router_only", init="coefficients") as one:
        module = TextToTextModule(one, ByT5Tokenizer(), {"new": "EM"})
        torch.nn.init.constant_(one.backbone.get_input_embeddings().weight, torch.nan)
        with pytest.raises(DivergedError, match="the loss of all coefficients is not finite"):
            compose(module, [BATCH], [], n_evaluations=8)


def test_coefficients_of_soups_start_alike_and_learn_alone() -> None:
    model = apply_mode(
        skilled(tiny_t5(), inventory="lora-deltas"), "router_only", 2, init="coefficients"
    )
    router = model.router
    assert isinstance(router, CoefficientRouter)
    assert torch.equal(router.rows, torch.full_like(router.rows, 1 / router.n_skills))
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained == ["router.rows"]
    inputs = {name: value for name, value in BATCH.items() if name != "task_ids"}
    model(BATCH["task_ids"], **inputs).loss.backward()
    # A plain loop: the gradient of a coefficient is that of the loss along the skill's change.
    layers = list(model.skilled_layers().values())
    step = 1e-2
    for group, k in ((0, 0), (len(layers) - 1, 2)):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                router.rows[group, 0, :, k] += sign * step
                values.append(float(model(BATCH["task_ids"], **inputs).loss))
                router.rows[group, 0, :, k] -= sign * step
        slope = (values[0] - values[1]) / (2 * step)
        # Differences of single precision over a step of 1e-2.
        assert float(router.rows.grad[group, 0, :, k].sum()) == pytest.approx(slope, abs=2e-3)


# Evolution reproduces optima that are known.


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
    # Where everything is better than the start, three tries find something.
    torch.manual_seed(0)
    found, value = evolve(lambda w: float(not w.any()), torch.zeros(8), n_evaluations=3, bound=1.5)
    assert value == 0.0
    assert found.any()
