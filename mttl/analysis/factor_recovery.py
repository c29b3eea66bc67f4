"""Scores of how well routing recovers known factors of tasks, such as language and operation.

In each group of layers, skills are first matched one to one to the values of a factor. Factors are
scored separately, so that a strong factor does not take the skills of a weaker one.
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
    """Scores of the recovery of one factor, each with its permutation baseline.

    Attributes:
        agreement: Adjusted mutual information of the factor and the tasks' clusters; a task's
            cluster is the skill that it uses most among those matched to the factor's values.
        matching: Mean area under the ROC curve with which the use of a value's skill separates the
            value's tasks from all others; 0.5 for a value without a skill.
        pairs: Area under the ROC curve with which the similarity of two tasks separates pairs with
            the same value from others; 0.5 without pairs. Both tasks of a pair differ in all other
            factors. The similarity is the cosine of the routing weights less their mean and their
            additive fit by the other factors, which reveals a factor next to a stronger one.
    """

    agreement: PermutationTest
    matching: PermutationTest
    pairs: PermutationTest


def factor_recovery(
    use: Float[np.ndarray, "G T K"],
    factors: Mapping[str, Sequence[str]],
    *,
    n_permutations: int = 100,
) -> dict[str, FactorRecovery | None]:
    """Return the scores of every factor's recovery by the use of skills.

    Agreement and matching are means over groups of layers, and 1 if each value of the factor has a
    skill that all its tasks use and no others; pairs compares all groups at once. The baseline
    permutes a factor's values among tasks that are equal in all other factors, and matches again,
    so the other factors do not contribute. If such tasks never differ in the factor (the others
    determine it, or it has one value only), the result is None.
    The use of each skill by each task is a probability or a weight; heads count as groups.
    ``factors`` has the value of every task by name of the factor.
    """
    labels = {name: np.unique(list(own), return_inverse=True)[1] for name, own in factors.items()}
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
        generator = np.random.default_rng(0)
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
    # Rounded, since equal similarities differ by rounding errors and would differ in rank.
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
    """Return the residuals of a least-squares fit by an effect of each other factor."""
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
    """Return the ranks along the second axis, from 1; ties share their mean rank."""
    from scipy.stats import rankdata

    return rankdata(values, axis=1)


def _areas(
    ranks: Float[np.ndarray, "N K"], members: Bool[np.ndarray, "V N"]
) -> Float[np.ndarray, "V K"]:
    """Return areas under the ROC curve of members against others; 0.5 if one set is empty."""
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
    """Return the number of each task's most used skill, from 1; 0 if it uses all equally."""
    if not len(skills):
        return np.zeros(len(use), dtype=int)
    chosen = use[:, skills]
    equal = chosen.max(1) == chosen.min(1)
    # For a single skill, the tasks are those above the mean use.
    if len(skills) == 1:
        return (chosen[:, 0] > chosen.mean()).astype(int)
    return np.where(equal, 0, chosen.argmax(1) + 1)
