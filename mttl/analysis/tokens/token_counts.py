"""Counts of which expert was chosen for which token, after which token, of which task."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

# Keys of one layer are merged when there are more.
MOST_KEYS = 2_000_000


class TokenCounts:
    """Collects choices, layer by layer; the token ``n_tokens`` stands for the start of a text."""

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
        """Return what a layer chose, by expert, preceding token and token."""
        self._merge(layer)
        rest, tokens = np.divmod(self._keys[layer], self.n_tokens + 1)
        experts, previous = np.divmod(rest, self.n_tokens + 1)
        return Bigrams(experts, previous, tokens, self._counts[layer], self.n_experts)

    def _merge(self, layer: int) -> None:
        self._keys[layer], where = np.unique(self._keys[layer], return_inverse=True)
        self._counts[layer] = np.bincount(where, self._counts[layer]).astype(np.int64)


@dataclass(frozen=True)
class Bigrams:
    """How often a layer chose an expert for a token after another token.

    Attributes:
        experts: Of every combination that occurred.
        previous: The preceding token, or V at the start of a text.
        tokens: The token.
        counts: How often.
        n_experts: Experts E.
    """

    experts: Int[np.ndarray, "C"]
    previous: Int[np.ndarray, "C"]
    tokens: Int[np.ndarray, "C"]
    counts: Int[np.ndarray, "C"]
    n_experts: int

    def by_token(self) -> tuple[Int[np.ndarray, "A"], Int[np.ndarray, "A E"]]:
        """Return the tokens that occurred, and how often each went to each expert."""
        return self._table(self.tokens)

    def by_previous(self) -> tuple[Int[np.ndarray, "A"], Int[np.ndarray, "A E"]]:
        """Return the same of preceding tokens."""
        return self._table(self.previous)

    def commonest_before(self, expert: int, token: int) -> int:
        """Return the token that stood most often before one that went to an expert."""
        here = (self.experts == expert) & (self.tokens == token)
        return int(self.previous[here][self.counts[here].argmax()])

    def _table(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found, where = np.unique(values, return_inverse=True)
        table = np.zeros((len(found), self.n_experts), dtype=np.int64)
        np.add.at(table, (where, self.experts), self.counts)
        return found, table
