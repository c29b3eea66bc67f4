"""How even the loads of experts are, and what decides the expert of a token."""

import numpy as np
from jaxtyping import Float, Int


def load_entropy(loads: Float[np.ndarray, "*layers E"]) -> Float[np.ndarray, "*layers"]:
    """Return entropy over its maximum: 1 for equal loads, 0 if one expert (or none) has all."""
    totals = loads.sum(-1, keepdims=True)
    shares = np.divide(loads, totals, out=np.zeros(loads.shape), where=totals > 0)
    return _entropy(shares) / np.log(loads.shape[-1])


def mutual_information(counts: Int[np.ndarray, "A E"]) -> float:
    """Return how many bits one variable tells about the other, corrected for chance.

    The plug-in estimate of a table with a rows, e columns and n entries is too large by about
    (a - 1)(e - 1) / (2 n) nats where nothing is shared (Miller and Madow); that is taken off. Rows
    and columns without an entry do not count.
    """
    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0].astype(np.float64)
    total = table.sum()
    if not total:
        return 0.0
    joint = table / total
    found = _entropy(joint.sum(1)) + _entropy(joint.sum(0)) - _entropy(joint.ravel())
    bias = (table.shape[0] - 1) * (table.shape[1] - 1) / (2 * total)
    return float(max(0.0, found - bias) / np.log(2))


def entropy_bits(counts: Float[np.ndarray, "E"]) -> float:
    """Return the entropy of a distribution in bits, the most another variable can tell about it."""
    total = counts.sum()
    return float(_entropy(counts / total) / np.log(2)) if total else 0.0


def _entropy(shares: np.ndarray) -> np.ndarray:
    logs = np.log(shares, out=np.zeros(shares.shape), where=shares > 0)
    return -(shares * logs).sum(-1)
