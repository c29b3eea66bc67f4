import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from mttl.analysis.statistics import (
    EFFECTIVE,
    discreteness,
    effective_skills,
    effective_skills_over_training,
    layer_statistics,
    stack_means,
    usage,
)
from mttl.training.monitors import routing_statistics

GROUPS = ("encoder.block.0", "decoder.block.0", "decoder.block.1")


def test_discreteness_is_one_minus_the_mean_entropy_in_bits():
    p = torch.tensor([0.1, 0.7, 0.9]).view(1, 1, 1, 3)
    expected = 1 - sum(entropy([x, 1 - x], base=2) for x in (0.1, 0.7, 0.9)) / 3
    # float32 probabilities
    assert discreteness(p) == pytest.approx(expected, abs=1e-6)


def test_usage():
    even = torch.eye(3).view(1, 3, 1, 3)
    assert usage(even) == pytest.approx(1)
    one = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).view(1, 2, 1, 2)
    assert usage(one) == 0
    assert usage(torch.ones(1, 4, 1, 1)) == 1
    mixed = torch.tensor([[3.0, 1.0]]).view(1, 1, 1, 2)
    assert usage(mixed) == pytest.approx(entropy([0.75, 0.25]) / math.log(2))


def test_effective_skills_are_the_exponential_of_the_entropy_averaged_over_groups_and_heads():
    use = torch.rand(2, 3, 2, 5)
    expected = [
        sum(math.exp(entropy(use[g, task, h])) for g in range(2) for h in range(2)) / 4
        for task in range(3)
    ]
    # float32 input
    assert effective_skills(use).tolist() == pytest.approx(expected, abs=1e-6)


def test_a_row_per_group() -> None:
    binary, undecided = np.eye(2), np.full((2, 2), 0.5)
    found = layer_statistics(np.stack([binary, undecided]))
    # discreteness, active cells, usage, effective skills
    np.testing.assert_allclose(found, [[1, 0.5, 1, 1], [0, 0, 1, 2]], atol=1e-12)


def test_means_are_those_that_training_logs() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.uniform(size=(3, 4, 5))
    logged = routing_statistics(torch.from_numpy(probabilities)[:, :, None], GROUPS)
    means = stack_means(layer_statistics(probabilities), GROUPS)
    assert list(means) == ["encoder", "decoder", "all"]
    for stack, values in means.items():
        name = "routing/" if stack == "all" else f"routing/{stack}/"
        for statistic, value in zip(
            ("discreteness", "active cells", "usage"), values, strict=False
        ):
            assert value == pytest.approx(logged[f"{name}{statistic.replace(' ', '_')}"])


def test_effective_skills_over_training() -> None:
    even, single = np.full((2, 4), 0.25), np.eye(4)[:2]
    weights = np.stack([[even, even, even], [single, even, single]])
    found = effective_skills_over_training(weights, GROUPS)
    assert {name: values.tolist() for name, values in found.items()} == {
        f"encoder/{EFFECTIVE}": pytest.approx([4, 1]),
        f"decoder/{EFFECTIVE}": pytest.approx([4, 2.5]),
        EFFECTIVE: pytest.approx([4, 2]),
    }
