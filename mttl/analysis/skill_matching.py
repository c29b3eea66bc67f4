"""Matching of the skills of two runs, or of the groups of layers of one run.

Numbers of skills are arbitrary: the third skill of one run or group of layers may correspond to
the fifth of another. Skills are matched before anything is averaged.
"""

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.statistics import PermutationTest, permutation_test

MOST_ROUNDS = 20


def match_skills(
    first: Float[np.ndarray, "G T K"], second: Float[np.ndarray, "G T K"]
) -> Int[np.ndarray, "G K"]:
    """Return for each group the second run's skills in the order of the first; see `matched`.

    The one-to-one matching maximises the correlation of the tasks' weights.
    """
    return _assign(_correlations(_standardised(first), _standardised(second)))[0]


def matched(
    weights: Float[np.ndarray, "G T K"], pairs: Int[np.ndarray, "G K"]
) -> Float[np.ndarray, "G T K"]:
    """Return the weights with their skills reordered by ``pairs``."""
    return np.take_along_axis(weights, pairs[:, None, :], axis=2)


def align_groups(weights: Float[np.ndarray, "G T K"]) -> Int[np.ndarray, "G K"]:
    """Return for each group of layers its skills in one common order; see `matched`.

    Every group's skills are matched, one to one, to the mean of the groups matched before, and then
    to the mean of all until nothing changes. The most used skills come first.
    """
    rows = _standardised(weights)
    pairs = np.tile(np.arange(weights.shape[2]), (len(weights), 1))
    common = rows[:1].copy()
    for group in range(1, len(rows)):
        pairs[group] = _assign(_correlations(common, rows[group : group + 1]))[0][0]
        common += matched(rows[group : group + 1], pairs[group : group + 1])
    for _ in range(MOST_ROUNDS):
        found = _assign(_correlations(np.broadcast_to(common, rows.shape), rows))[0]
        if (found == pairs).all():
            break
        pairs, common = found, matched(rows, found).sum(0, keepdims=True)
    use = matched(np.asarray(weights, dtype=np.float64), pairs).mean((0, 1))
    return pairs[:, np.argsort(-use, kind="stable")]


def group_agreement(
    weights: Float[np.ndarray, "G T K"], *, n_permutations: int = 100
) -> PermutationTest | None:
    """Return the mean correlation of matched skills between groups of layers; None for one group.

    The baseline permutes the tasks of every group independently, and matches again.
    """
    if len(weights) == 1:
        return None
    generator = np.random.default_rng(0)
    permuted = [
        _agreement(np.stack([generator.permutation(group) for group in weights]))
        for _ in range(n_permutations)
    ]
    return permutation_test(_agreement(weights), np.array(permuted))


def matched_correlation(
    first: Float[np.ndarray, "G T K"],
    second: Float[np.ndarray, "G T K"],
    *,
    n_permutations: int = 1000,
) -> tuple[Float[np.ndarray, "G"], PermutationTest]:
    """Return the correlation of matched skills of two runs: mean per group, and mean over groups.

    The baseline permutes the tasks of the second run, equally in all groups, and matches again,
    since matching finds correlations in noise. A skill that all tasks use equally has correlation
    0.
    """
    one, other = _standardised(first), _standardised(second)
    by_group = _assign(_correlations(one, other))[1]
    generator = np.random.default_rng(0)
    permuted = [
        _assign(_correlations(one, other[:, generator.permutation(one.shape[1])]))[1].mean()
        for _ in range(n_permutations)
    ]
    return by_group, permutation_test(by_group.mean(), np.array(permuted))


def _agreement(weights: Float[np.ndarray, "G T K"]) -> float:
    rows = matched(_standardised(weights), align_groups(weights))
    total, n_groups = rows.sum(0), len(rows)
    # Sum over pairs of groups: the square of the sum less the squares of the groups.
    pairs = (total**2).sum(0) - (rows**2).sum((0, 1))
    return float(pairs.mean() / (n_groups * (n_groups - 1)))


def _standardised(weights: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "G T K"]:
    """Return columns less their mean, scaled to length 1; constant columns become zero."""
    centred = np.asarray(weights, dtype=np.float64)
    centred = centred - centred.mean(1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.where(norms > 1e-9, centred / np.where(norms > 1e-9, norms, 1), 0)


def _correlations(
    one: Float[np.ndarray, "G T K"], other: Float[np.ndarray, "G T K"]
) -> Float[np.ndarray, "G K K"]:
    return np.swapaxes(one, 1, 2) @ other


def _assign(
    correlations: Float[np.ndarray, "G K K"],
) -> tuple[Int[np.ndarray, "G K"], Float[np.ndarray, "G"]]:
    """Return every group's best matching (Hungarian method) and its mean correlation."""
    from scipy.optimize import linear_sum_assignment

    pairs = np.array([linear_sum_assignment(-table)[1] for table in correlations])
    return pairs, np.take_along_axis(correlations, pairs[:, :, None], axis=2).mean((1, 2))
