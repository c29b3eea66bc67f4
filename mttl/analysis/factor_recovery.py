"""How well learned routing recovers the known factors of its tasks, such as language and operation.

Skills have no names. They are matched to the values of a factor first, one to one, in each group of
layers on its own. Every factor is scored alone: of two that routing reveals, the weaker would find
the skills taken by the stronger.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mttl.analysis.clustering import adjusted_mutual_information
from mttl.analysis.projection import task_similarity
from mttl.analysis.statistics import PermutationTest, permutation_test

_CHANCE = 0.5  # the area under the curve without information


class FactorRecovery(NamedTuple):
    """How well one factor is recovered, beside chance.

    Attributes:
        agreement: The adjusted mutual information of the factor and the tasks' clusters: each task
            is put to the skill that it uses most, of those matched to the factor's values.
        matching: The mean area under the ROC curve: how well a value's skill separates its tasks
            from all others; 0.5 for a value without a skill.
        pairs: The area under the ROC curve of the similarity of tasks: how well it separates
            two tasks that share the factor's value from two that do not. Only tasks that differ in
            every other factor are paired; it is 0.5 without any. Rows are compared by their cosine,
            less their mean and what the sum of the other factors' effects explains, so that a
            factor shows behind a stronger one, and without a skill of its own.
    """

    agreement: PermutationTest
    matching: PermutationTest
    pairs: PermutationTest


def factor_recovery(
    use: Float[np.ndarray, "G T K"],
    factors: Mapping[str, Sequence[str]],
    *,
    n_permutations: int = 100,
    seed: int = 0,
) -> dict[str, FactorRecovery | None]:
    """Return how well the use of skills recovers every factor.

    Agreement and matching are means over groups of layers, and 1 where each value of the factor has
    a skill that its tasks use and no others; pairs compares rows of all groups at once. The
    baseline permutes a factor's values among tasks that are equal in all other factors, and matches
    again: what routing reveals about the others counts as chance here. If such tasks never differ
    in the factor (others determine it, or it has one value only), the result is None.

    Args:
        use: How much each task uses each skill: probabilities or weights; heads are groups.
        factors: By name of a factor, its value for every task.
        n_permutations: Of the baseline, at least 1.
        seed: Of the baseline.

    Raises:
        ValueError: If a use is not finite: it would stand out from every permutation.
    """
    if not np.isfinite(use).all():
        raise ValueError("the use of skills must be finite; some is infinite or not a number")
    labels = {
        name: np.unique(list(values), return_inverse=True)[1] for name, values in factors.items()
    }
    known, ranks = np.stack([*labels.values()]), _ranks(use)
    recovered: dict[str, FactorRecovery | None] = {}
    for number, (name, own) in enumerate(labels.items()):
        others = np.delete(known, number, axis=0)
        # Tasks of a block are equal in all other factors.
        blocks = np.unique([0 * own, *others], axis=1, return_inverse=True)[1]
        if not any(np.ptp(own[blocks == block]) for block in range(blocks.max() + 1)):
            recovered[name] = None
            continue
        score = _scorer(use, ranks, others)
        generator = np.random.default_rng(seed)
        orders = (_within(blocks, generator) for _ in range(n_permutations))
        permuted = np.array([score(own[order]) for order in orders])  # (N, 3)
        recovered[name] = FactorRecovery(*map(permutation_test, score(own), permuted.T))
    return recovered


def _scorer(
    use: Float[np.ndarray, "G T K"],
    ranks: Float[np.ndarray, "G T K"],
    others: Int[np.ndarray, "F T"],
) -> Callable[[Int[np.ndarray, "T"]], tuple[float, float, float]]:
    """Return the three scores of one factor, as a function of the tasks' values."""
    similarity = task_similarity(_unexplained(use, others), "cosine")
    one, two = np.triu_indices(len(similarity), 1)
    apart = (others[:, one] != others[:, two]).all(0)
    one, two = one[apart], two[apart]
    # Equal likenesses differ by rounding, and their ranks must not.
    pair_ranks = _ranks(similarity[one, two].round(9)[None, :, None])[0]  # (P, 1)

    def matching(group: int, members: Bool[np.ndarray, "V T"]) -> tuple[float, float]:
        skills, scores = _match(ranks[group], members)
        clusters = _most_used(use[group], skills[skills >= 0])
        return adjusted_mutual_information(members.argmax(0)[None], clusters)[0], scores.mean()

    def score(labels: Int[np.ndarray, "T"]) -> tuple[float, float, float]:
        members = labels == np.arange(labels.max() + 1)[:, None]
        agreement, areas = np.array([matching(g, members) for g in range(len(use))]).mean(0)
        equal = labels[one] == labels[two]
        return agreement, areas, float(_areas(pair_ranks, equal[None])[0, 0])

    return score


def _unexplained(
    use: Float[np.ndarray, "G T K"], others: Int[np.ndarray, "F T"]
) -> Float[np.ndarray, "G T K"]:
    """Return the rows less their least-squares fit by the sum of an effect of each factor."""
    effects = [row[:, None] == np.arange(row.max() + 1) for row in others]
    design = np.concatenate([np.ones((use.shape[1], 1)), *effects], axis=1)
    return use - design @ (np.linalg.pinv(design) @ use)


def _within(blocks: Int[np.ndarray, "T"], generator: np.random.Generator) -> Int[np.ndarray, "T"]:
    """Return a random order of the tasks that moves them within their blocks."""
    order = np.arange(len(blocks))
    for block in range(blocks.max() + 1):
        inside = np.flatnonzero(blocks == block)
        order[inside] = generator.permutation(inside)
    return order


def _ranks(values: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "G T K"]:
    """The ranks along the second axis, from 1; equal ones share the mean of theirs."""
    from scipy.stats import rankdata

    return rankdata(values, axis=1)


def _areas(
    ranks: Float[np.ndarray, "N K"], members: Bool[np.ndarray, "V N"]
) -> Float[np.ndarray, "V K"]:
    """Return how well each column separates members from others; 0.5 without either."""
    n_inside = members.sum(1, keepdims=True)
    n_pairs = n_inside * (members.shape[1] - n_inside)
    above = members @ ranks - n_inside * (n_inside + 1) / 2
    return np.where(n_pairs == 0, _CHANCE, above / np.maximum(n_pairs, 1))


def _match(
    ranks: Float[np.ndarray, "T K"], members: Bool[np.ndarray, "V T"]
) -> tuple[Int[np.ndarray, "V"], Float[np.ndarray, "V"]]:
    from scipy.optimize import linear_sum_assignment

    areas = _areas(ranks, members)
    rows, columns = linear_sum_assignment(np.maximum(areas, _CHANCE), maximize=True)
    skills, scores = np.full(len(members), -1), np.full(len(members), _CHANCE)
    tells = areas[rows, columns] > _CHANCE
    skills[rows[tells]] = columns[tells]
    scores[rows[tells]] = areas[rows[tells], columns[tells]]
    return skills, scores


def _most_used(use: Float[np.ndarray, "T K"], skills: Int[np.ndarray, "N"]) -> Int[np.ndarray, "T"]:
    """Return the skill that each task uses most, from 1; 0 if it uses all equally."""
    if not len(skills):
        return np.zeros(len(use), dtype=int)
    chosen = use[:, skills]
    equal = chosen.max(1) == chosen.min(1)
    # Of a single skill, those who use it more than the mean task does.
    if len(skills) == 1:
        return (chosen[:, 0] > chosen.mean()).astype(int)
    return np.where(equal, 0, chosen.argmax(1) + 1)
