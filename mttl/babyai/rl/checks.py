"""Checks that the functions of this package share."""

import numpy as np
from torch import Tensor


def require_same_shape(**arrays: Tensor | np.ndarray) -> None:
    """Check that arrays agree in shape: broadcasting would hide that they do not.

    Raises:
        ValueError: If they do not.
    """
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"these must all have the same shape: {listed}")
