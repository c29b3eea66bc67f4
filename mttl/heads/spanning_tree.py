"""The best dependency tree of a table of scores."""

import numpy as np
from jaxtyping import Float

from mttl.metrics.trees import find_cycle


def spanning_tree(scores: Float[np.ndarray, "W V"]) -> list[int]:
    """Return the heads of the tree with the highest sum of scores and exactly one root word.

    As Chu and Liu, and Edmonds, every node takes its best head, and a cycle becomes one node with
    adapted scores, until there is none. For the single root, pairs are compared in order: minus the
    number of arcs from the root, and the score. Every tree has such an arc, so the best pair
    has one. NumPy orders complex numbers as such pairs, so that scores lose no precision.

    Args:
        scores: Score of every word's head: the root, then the words, so V = W + 1.

    Raises:
        ValueError: If a score is not finite.

    References:
        Edmonds, *Optimum Branchings*, 1967. Root constraint: Stanojević and Cohen, *A Root of the
        Problem: Optimizing Single-Root Dependency Parsing*, EMNLP 2021.
    """
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite; NaN or infinity comes from a diverged model")
    n_nodes = len(scores) + 1
    pairs = np.zeros((n_nodes, n_nodes), dtype=np.complex128)
    pairs.imag[1:] = scores
    pairs.real[:, 0] = -1
    never = complex(-n_nodes)  # less than all arcs of a tree
    np.fill_diagonal(pairs, never)
    steps = []
    while cycle := find_cycle((heads := pairs.argmax(1))[1:].tolist()):
        rest = np.setdiff1d(np.arange(len(pairs)), cycle)
        gains = pairs[cycle][:, rest] - pairs[cycle, heads[cycle]][:, None]
        inside = pairs[rest][:, cycle]
        steps.append((heads, np.array(cycle), rest, gains.argmax(0), inside.argmax(1)))
        # The cycle becomes the last node.
        others = np.column_stack([pairs[rest][:, rest], inside.max(1)])
        pairs = np.vstack([others, [*gains.max(0), never]])
    for before, cycle, rest, entries, exits in reversed(steps):
        outer, heads = heads, before
        # Heads of the other nodes: a node, or the best one of the cycle.
        heads[rest] = np.where(outer[:-1] < len(rest), np.append(rest, 0)[outer[:-1]], cycle[exits])
        heads[cycle[entries[outer[-1]]]] = rest[outer[-1]]
    return heads[1:].tolist()
