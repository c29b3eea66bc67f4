"""Permutation tests: a value compared with those of permuted data."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class PermutationTest:
    """A value and its permutation baseline."""

    value: float
    mean: float
    percentile_95: float
    p_value: float


def permutation_test(value: float, permuted: Float[np.ndarray, "N"]) -> PermutationTest:
    r"""Compare a value with those of permuted data.

    The p-value is :math:`(1 + \#\{b \ge v\}) / (1 + N)`: what was found is one of the
    permutations too, so that it is never 0 (Phipson and Smyth, *Permutation P-values Should Never
    Be Zero*, SAGMB 2010).
    """
    # Equal values may differ by rounding.
    reached = int((permuted >= value - 1e-12).sum())
    return PermutationTest(
        value=float(value),
        mean=float(permuted.mean()),
        percentile_95=float(np.percentile(permuted, 95)),
        p_value=(1 + reached) / (1 + len(permuted)),
    )
