"""Diagonal Fisher information against loops and a closed form."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mttl.aggregation.fisher import diagonal_fisher


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


def test_mistakes_are_named() -> None:
    model, batches = Classifier(), make_batches(1)
    for settings, message in (
        ({"gradients": "token"}, "gradients .'token'. must be one of example, batch"),
        ({"at_once": 0}, "at_once .0. must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            diagonal_fisher(model, log_likelihood, batches, **settings)
    with pytest.raises(ValueError, match="batches is empty"):
        diagonal_fisher(model, log_likelihood, [])
    batches[0]["x"][0, 0] = float("inf")
    with pytest.raises(ValueError, match="is not finite"):
        diagonal_fisher(model, log_likelihood, batches)
