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


def require_fraction(**numbers: float) -> None:
    """Check that numbers lie between 0 and 1, both included.

    Raises:
        ValueError: If one does not.
    """
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{name} ({number}) must lie between 0 and 1")


def require_not_negative(**numbers: float) -> None:
    """Check that numbers are 0 or more.

    Raises:
        ValueError: If one is not.
    """
    for name, number in numbers.items():
        if not number >= 0:
            raise ValueError(f"{name} ({number}) must not be negative")
