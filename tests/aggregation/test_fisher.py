"""Diagonal Fisher information, and merging by it, against loops and a closed form."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mttl.aggregation.fisher import diagonal_fisher, elastic_removal, fisher_average


class Classifier(nn.Module):
    """Logistic regression with a hidden layer, dropout, a tied weight and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.dropout = nn.Dropout(0.5)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(self.first(x).tanh()))


def log_likelihood(call: Callable[..., Any], batch: Any) -> tuple[Tensor, Tensor]:
    scores = call(x=batch["x"]).log_softmax(-1)
    return scores.gather(1, batch["y"][:, None])[:, 0], torch.full((len(scores),), 2.0)


def make_batches(n_batches: int = 2, size: int = 5) -> list[dict[str, Tensor]]:
    return [
        {"x": torch.randn(size, 3), "y": torch.randint(0, 3, (size,))} for _ in range(n_batches)
    ]


def looped(model: nn.Module, batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean squared gradient, one example after another, with plain backward passes."""
    model.eval()
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for batch in batches:
        for x, y in zip(batch["x"], batch["y"], strict=True):
            model.zero_grad()
            model(x[None]).log_softmax(-1)[0, y].backward()
            for name, value in model.named_parameters():
                if value.grad is not None:
                    total[name] += value.grad**2
    model.zero_grad()
    return {name: value / sum(len(b["y"]) for b in batches) for name, value in total.items()}


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_gradients_of_examples_are_those_of_a_loop(at_once: int) -> None:
    model, batches = Classifier(), make_batches()
    found = diagonal_fisher(model, log_likelihood, batches, at_once=at_once)
    expected = looped(model, batches)
    assert found.keys() == expected.keys()  # a shared weight stands there once
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name])  # float32, sums in another order


def test_gradients_of_batches_are_squared_as_the_released_code_does() -> None:
    model, batches = Classifier().eval(), make_batches()
    found = diagonal_fisher(model, log_likelihood, batches, gradients="batch")
    expected = torch.zeros(3)
    for batch in batches:
        model.zero_grad()
        # Two tokens per example, of which the loss is the mean.
        (log_likelihood(model, batch)[0].sum() / 10).neg().backward()
        assert model.second.bias.grad is not None
        expected += model.second.bias.grad**2 / 5 / 2
    torch.testing.assert_close(found["second.bias"], expected)


def test_labels_drawn_from_the_model_give_the_fisher_information() -> None:
    """For a softmax over biases alone it is p (1 − p)."""

    class Biases(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.tensor([0.0, 1.0, -1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.bias.expand(len(x), 3)

    model = Biases()
    p = model.bias.detach().softmax(0)
    y = torch.multinomial(p, 20_000, replacement=True)
    batch = {"x": torch.zeros(20_000, 1), "y": y}
    found = diagonal_fisher(model, log_likelihood, [batch], at_once=20_000)["bias"]
    # Five standard deviations of a mean of 20,000 values that lie between 0 and 1.
    torch.testing.assert_close(found, p * (1 - p), atol=5 * 0.5 / 20_000**0.5, rtol=0)


def test_mistakes_of_the_estimate_are_named() -> None:
    model, batches = Classifier(), make_batches(1)
    for settings, message in (
        ({"gradients": "token"}, "gradients .'token'. must be one of example, batch"),
    ):
        with pytest.raises(ValueError, match=message):
            diagonal_fisher(model, log_likelihood, batches, **settings)
    with pytest.raises(ValueError, match="batches is empty"):
        diagonal_fisher(model, log_likelihood, [])
    batches[0]["x"][0, 0] = float("inf")
    with pytest.raises(ValueError, match="is not finite"):
        diagonal_fisher(model, log_likelihood, batches)


def fishers(*shape: int) -> torch.Tensor:
    """Return values on both sides of the floor: from 1e-9 to 1e3."""
    return 10.0 ** torch.empty(*shape).uniform_(-9, 3)


@pytest.mark.parametrize("ceiling", [None, 10.0])
@pytest.mark.parametrize("base_weight", [1.0, 0.85])
def test_the_equation_number_by_number(base_weight: float, ceiling: float | None) -> None:
    base, expert, anti_expert = torch.randn(3, 30).unbind()
    of_base, of_expert, of_anti_expert = fishers(3, 30).unbind()
    found = elastic_removal(
        *(base, of_base, [expert, anti_expert], [of_expert, of_anti_expert], [0.3, -0.15]),
        base_weight=base_weight,
        ceiling=ceiling,
    )

    def bounded(value: float) -> float:
        return min(max(value, 1e-6), ceiling or float("inf"))

    for place in range(30):
        f0, fe, fa = (bounded(float(f[place])) for f in (of_base, of_expert, of_anti_expert))
        t0, tg, tb = (float(t[place]) for t in (base, expert, anti_expert))
        # The sign is the numerator's; in Z every term is positive.
        numerator = base_weight * f0 * t0 + 0.3 * fe * tg - 0.15 * fa * tb
        expected = numerator / (base_weight * f0 + 0.3 * fe + 0.15 * fa)
        # Float32 sums of terms of both signs: a few roundings of the largest.
        assert float(found[place]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_averages_are_those_of_the_models() -> None:
    base, *models = torch.randn(4, 30).unbind()
    of_models = list(fishers(3, 30).unbind())
    weights = [1.0, 0.5, 2.0]
    found = fisher_average(base, [model - base for model in models], of_models, weights)
    bounded = [f.clamp(1e-6).double() * w for f, w in zip(of_models, weights, strict=True)]
    expected = sum(f * m for f, m in zip(bounded, models, strict=True)) / sum(bounded)
    # τ = θ − θ0 rounds once, and so does adding θ0 again.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: elastic_removal(ONE, ONE, [ONE], [ONE], []), "is shorter"),
        (lambda: elastic_removal(ONE, ONE, [], [], [], floor=0.0), "floor .0.0. must be positive"),
        (lambda: fisher_average(ONE, [ONE], [ONE], [-1.0]), "must be positive, and at least one"),
        (lambda: fisher_average(ONE, [], [], []), "at least one"),
    ],
)
def test_mistakes_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
