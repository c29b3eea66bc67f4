"""Counts of the experts that tokens choose, by token, preceding token and task."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

# Largest number of keys of one layer before they are merged.
MOST_KEYS = 2_000_000


class TokenCounts:
    """Counts of choices by layer; the token ``n_tokens`` stands for the start of a text."""

    def __init__(self, n_layers: int, n_tasks: int, n_experts: int, n_tokens: int) -> None:
        self.n_experts = n_experts
        self.n_tokens = n_tokens
        self.tasks = np.zeros((n_layers, n_tasks, n_experts), dtype=np.int64)
        self.dropped = np.zeros(n_layers, dtype=np.int64)
        self._keys = [np.zeros(0, dtype=np.int64) for _ in range(n_layers)]
        self._counts = [np.zeros(0, dtype=np.int64) for _ in range(n_layers)]

    def add(
        self,
        layer: int,
        experts: Int[np.ndarray, "P"],
        tasks: Int[np.ndarray, "P"],
        tokens: Int[np.ndarray, "P"],
        previous: Int[np.ndarray, "P"],
        n_dropped: int = 0,
    ) -> None:
        """Add the choices of a layer in one forward pass."""
        np.add.at(self.tasks[layer], (tasks, experts), 1)
        self.dropped[layer] += n_dropped
        size = self.n_tokens + 1
        keys, counts = np.unique((experts * size + previous) * size + tokens, return_counts=True)
        self._keys[layer] = np.concatenate([self._keys[layer], keys])
        self._counts[layer] = np.concatenate([self._counts[layer], counts])
        if len(self._keys[layer]) > MOST_KEYS:
            self._merge(layer)

    def bigrams(self, layer: int) -> "Bigrams":
        """Return the counts of a layer by expert, preceding token and token."""
        self._merge(layer)
        rest, tokens = np.divmod(self._keys[layer], self.n_tokens + 1)
        experts, previous = np.divmod(rest, self.n_tokens + 1)
        return Bigrams(experts, previous, tokens, self._counts[layer], self.n_experts)

    def _merge(self, layer: int) -> None:
        self._keys[layer], where = np.unique(self._keys[layer], return_inverse=True)
        self._counts[layer] = np.bincount(where, self._counts[layer]).astype(np.int64)


@dataclass(frozen=True)
class Bigrams:
    """Counts of a layer's choices by expert, preceding token and token, without zeros.

    The token before the first one of a text is V.
    """

    experts: Int[np.ndarray, "C"]
    previous: Int[np.ndarray, "C"]
    tokens: Int[np.ndarray, "C"]
    counts: Int[np.ndarray, "C"]
    n_experts: int

    def table(self, values: Int[np.ndarray, "C"]) -> tuple[Int[np.ndarray, "A"], np.ndarray]:
        """Return the distinct ``values``, tokens or previous, and their counts by expert (A, E)."""
        found, where = np.unique(values, return_inverse=True)
        table = np.zeros((len(found), self.n_experts), dtype=np.int64)
        np.add.at(table, (where, self.experts), self.counts)
        return found, table


def load_entropy(loads: Float[np.ndarray, "*layers E"]) -> Float[np.ndarray, "*layers"]:
    """Return the entropy over its maximum: 1 for equal loads, 0 if one expert has all or none."""
    totals = loads.sum(-1, keepdims=True)
    shares = np.divide(loads, totals, out=np.zeros(loads.shape), where=totals > 0)
    return _entropy(shares) / np.log(loads.shape[-1])


def mutual_information(counts: Int[np.ndarray, "A E"]) -> float:
    """Return the mutual information of rows and columns in bits, with the Miller-Madow correction.

    The plug-in estimate of independent variables is too large by about (a - 1)(e - 1) / (2 n)
    nats for a rows, e columns and n entries; this is subtracted. Empty rows and columns do not
    count.
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
    """Return the entropy in bits, an upper bound on the mutual information."""
    total = counts.sum()
    return float(_entropy(counts / total) / np.log(2)) if total else 0.0


def _entropy(shares: np.ndarray) -> np.ndarray:
    logs = np.log(shares, out=np.zeros(shares.shape), where=shares > 0)
    return -(shares * logs).sum(-1)
