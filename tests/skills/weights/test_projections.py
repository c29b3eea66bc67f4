"""Random projections, beside dense matrices."""

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from mttl.skills import IntrinsicInventory
from mttl.skills.weights.intrinsic import (
    SMALL,
    DenseProjection,
    Fastfood,
    power_of_two,
    walsh_hadamard,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("n", [1, 2, SMALL, 2 * SMALL, 4096])
def test_the_transform_is_the_product_with_the_matrix(n: int) -> None:
    x = torch.randn(3, n).double()
    torch.testing.assert_close(walsh_hadamard(x), x @ torch.tensor(hadamard(n)).double())


@pytest.mark.parametrize(("n_in", "n_out"), [(5, 12), (1, 7), (100, 12), (8, 4096), (64, 1000)])
def test_fastfood_equals_the_released_formula(n_in: int, n_out: int) -> None:
    """The vector is padded to the size of the transforms, the result cut and divided.

    So does `intrinsic.py` of r-three/t-few; here with the draws in the order of this project.
    """
    size = power_of_two(max(n_in, n_out))
    draws = np.random.RandomState(3)
    signs = 2.0 * draws.randint(0, 2, n_in) - 1
    order, scales = draws.permutation(size), draws.standard_normal(size)
    matrix = hadamard(size)
    x = np.random.RandomState(1).standard_normal(n_in)
    padded = np.concatenate([x * signs, np.zeros(size - n_in)])
    whole = matrix @ (scales * (matrix @ padded)[order])
    divisor = np.sqrt(size * np.square(scales).sum()) * np.sqrt(n_out / size)
    found = Fastfood(n_in, n_out, 3, CPU)(torch.tensor(x)[None])[0]
    # Scales are kept in single precision.
    torch.testing.assert_close(found, torch.tensor(whole[:n_out] / divisor), rtol=1e-5, atol=1e-6)


def test_draws_are_the_same_everywhere() -> None:
    """Runs hold no projection: another stream would make them useless."""
    dense = DenseProjection(1, 3, 7, CPU)(torch.ones(1, 1))[0]
    fast = Fastfood(2, 4, 7, CPU)(torch.tensor([[1.0, 2.0]]))[0]
    torch.testing.assert_close(dense, torch.tensor(DENSE))
    torch.testing.assert_close(fast, torch.tensor(FAST))


DENSE = [0.9638844132, -0.2656627893, 0.0187130217]
FAST = [-0.1153975725, 0.8869695067, 0.9585935473, -1.6795251369]


def test_a_matrix_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="would hold 80,000,000, above 67,108,864; use fastfood"):
        IntrinsicInventory(1000, 1000, 1, dimension=80, projection="dense")
