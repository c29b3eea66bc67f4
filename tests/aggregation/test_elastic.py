"""Elastic weight removal and Fisher-weighted averaging, against loops over single numbers."""

import pytest
import torch

from mttl.aggregation.elastic import elastic_removal, fisher_average


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
        (lambda: fisher_average(ONE, [ONE], [ONE], [-1.0]), "an average cannot subtract"),
        (lambda: fisher_average(ONE, [], [], []), "at least one"),
    ],
)
def test_mistakes_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
