import numpy as np
import pytest
import torch

from mttl.analysis.layers import (
    EFFECTIVE,
    effective_skills_over_training,
    layer_statistics,
    stack_means,
)
from mttl.training.monitors import routing_statistics

GROUPS = ("encoder.block.0", "decoder.block.0", "decoder.block.1")


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
