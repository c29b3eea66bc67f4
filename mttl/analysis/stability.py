"""Whether two runs, of different seeds, learn the same skills.

Skills have no names: the third of one run may be the fifth of another. They are matched first, in
each group of layers on its own.
"""

import numpy as np
from jaxtyping import Float, Int

from mttl.analysis.chance import Comparison, against_chance


def match_skills(
    first: Float[np.ndarray, "G T K"], second: Float[np.ndarray, "G T K"]
) -> Int[np.ndarray, "G K"]:
    """Pair the skills of two runs, one to one, so that their tasks' weights correlate most.

    Args:
        first: Mixing weights of one run.
        second: Those of the other, of the same tasks in the same order.

    Returns:
        For each group the skills of the second run in the order of the first's; see `matched`.

    Raises:
        ValueError: If the shapes differ.
    """
    return _assign(_correlations(_standardised(first), _standardised(second)))[0]


def matched(
    weights: Float[np.ndarray, "G T K"], pairs: Int[np.ndarray, "G K"]
) -> Float[np.ndarray, "G T K"]:
    """Return weights whose skills are reordered as `match_skills` says."""
    return np.take_along_axis(weights, pairs[:, None, :], axis=2)


def skill_stability(
    first: Float[np.ndarray, "G T K"],
    second: Float[np.ndarray, "G T K"],
    *,
    n_permutations: int = 1000,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "G"], Comparison]:
    """Return how much the matched skills of two runs correlate, beside chance.

    Matching finds correlation in noise too. The baseline permutes the tasks of the second run, the
    same way in all groups, and matches again.

    Args:
        first: Mixing weights of one run.
        second: Those of the other, of the same tasks in the same order.
        n_permutations: Of the baseline.
        seed: Of the baseline.

    Returns:
        The mean correlation of matched skills in every group, and its mean over groups compared
        with the baseline. A skill that all tasks use alike correlates with none (0).

    Raises:
        ValueError: If the shapes differ.
    """
    one, other = _standardised(first), _standardised(second)
    by_group = _assign(_correlations(one, other))[1]
    generator = np.random.default_rng(seed)
    permuted = [
        _assign(_correlations(one, other[:, generator.permutation(one.shape[1])]))[1].mean()
        for _ in range(n_permutations)
    ]
    return by_group, against_chance(by_group.mean(), np.array(permuted))


def _standardised(weights: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "G T K"]:
    """Columns less their mean, of length 1; constant ones are zero."""
    centred = np.asarray(weights, dtype=np.float64)
    centred = centred - centred.mean(1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.where(norms > 1e-9, centred / np.where(norms > 1e-9, norms, 1), 0)


def _correlations(
    one: Float[np.ndarray, "G T K"], other: Float[np.ndarray, "G T K"]
) -> Float[np.ndarray, "G K K"]:
    if one.shape != other.shape:
        raise ValueError(
            f"the runs' weights must have one shape, not {one.shape} and {other.shape}"
        )
    return np.swapaxes(one, 1, 2) @ other


def _assign(
    correlations: Float[np.ndarray, "G K K"],
) -> tuple[Int[np.ndarray, "G K"], Float[np.ndarray, "G"]]:
    """The best pairs of every group and their mean correlation (the Hungarian method)."""
    from scipy.optimize import linear_sum_assignment

    pairs = np.array([linear_sum_assignment(-table)[1] for table in correlations])
    values = np.take_along_axis(correlations, pairs[:, :, None], axis=2)
    return pairs, values.mean((1, 2))
