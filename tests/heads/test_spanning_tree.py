"""The best tree, beside all trees."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from mttl.heads import spanning_tree
from mttl.metrics.trees import find_cycle


@cache
def trees(n_words: int) -> np.ndarray:
    """Return the heads of all trees with one root word."""
    heads = [own for own in product(range(n_words + 1), repeat=n_words) if own.count(0) == 1]
    return np.array([own for own in heads if not find_cycle(own)])


@pytest.mark.parametrize("n_words", range(1, 7))
@pytest.mark.parametrize("root", [0.0, 1e9, -1e9], ids="root {:.0e}".format)
def test_no_tree_is_better(n_words, root):
    """With a high score of the root, every word prefers it, but only one may have it."""
    assert len(trees(n_words)) == n_words ** (n_words - 1)  # Cayley's formula
    words, random = np.arange(n_words), np.random.default_rng(n_words)
    for draw in range(40):
        # Small integers have many ties; sums of all scores here are exact.
        scores = random.integers(-2, 3 if draw % 2 else 1000, (n_words, n_words + 1)) * 0.5
        scores[:, 0] += root
        found = spanning_tree(scores)
        assert (trees(n_words) == found).all(1).any()
        assert scores[words, found].sum() == scores[words, trees(n_words)].sum(1).max()


def test_long_texts_are_trees():
    found = spanning_tree(np.random.default_rng(0).normal(size=(120, 121)))
    assert found.count(0) == 1
    assert find_cycle(found) == []


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_scores_must_be_finite(score):
    with pytest.raises(ValueError, match="scores must be finite; NaN or infinity comes from a div"):
        spanning_tree(np.array([[score, 0.0]]))
