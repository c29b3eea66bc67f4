"""How well learned routing recovers the known factors of its tasks, such as language and operation.

Skills have no names. They are matched to the values of all factors first, one to one, in each group
of layers on its own.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mttl.analysis.agreement import adjusted_mutual_information
from mttl.analysis.chance import Comparison, against_chance

_CHANCE = 0.5  # the area under the curve of a skill that tells nothing


class FactorRecovery(NamedTuple):
    """How well one factor is recovered, beside chance.

    Attributes:
        agreement: The adjusted mutual information of the factor and the tasks' clusters: each task
            is put to the skill that it uses most, of those matched to the factor's values.
        matching: The mean area under the ROC curve: how well a value's skill tells its tasks from
            all others; 0.5 for a value that no skill is left for, or none tells of.
    """

    agreement: Comparison
    matching: Comparison


def factor_recovery(
    use: Float[np.ndarray, "G T K"],
    factors: Mapping[str, Sequence[str]],
    *,
    n_permutations: int = 100,
    seed: int = 0,
) -> dict[str, FactorRecovery]:
    """Return how well the use of skills recovers every factor, averaged over groups of layers.

    Both scores are 1 where each value of each factor has a skill that its tasks use and no others.
    Matching finds something in noise too: the baseline permutes the tasks' factors, the same way in
    all groups, and matches again.

    Args:
        use: How much each task uses each skill: probabilities or weights; heads are groups.
        factors: By name of a factor, its value for every task.
        n_permutations: Of the baseline.
        seed: Of the baseline.

    Raises:
        ValueError: If a factor has not as many values as there are tasks, or one value only.
    """
    labels = {name: _codes(name, values, use.shape[1]) for name, values in factors.items()}
    ranks = _ranks(use)
    found = _scores(use, ranks, labels)
    generator = np.random.default_rng(seed)
    permuted = []
    for _ in range(n_permutations):
        order = generator.permutation(use.shape[1])
        permuted.append(_scores(use, ranks, {name: row[order] for name, row in labels.items()}))
    chance = np.array(permuted)  # (N, F, 2)
    return {
        name: FactorRecovery(
            against_chance(found[place, 0], chance[:, place, 0]),
            against_chance(found[place, 1], chance[:, place, 1]),
        )
        for place, name in enumerate(labels)
    }


def match_factors(
    use: Float[np.ndarray, "T K"], members: Bool[np.ndarray, "V T"]
) -> tuple[Int[np.ndarray, "V"], Float[np.ndarray, "V"]]:
    """Match skills to values, one to one, so that they tell most of them in all.

    Args:
        use: How much each task uses each skill.
        members: Which tasks have each value, of any factor.

    Returns:
        The skill of each value, -1 where none is left or none tells of it; and how well it tells
        the tasks of the value from all others (the area under the ROC curve, 0.5 without a skill).
    """
    return _match(_ranks(use[None])[0], members)


def _codes(name: str, values: Sequence[str], n_tasks: int) -> Int[np.ndarray, "T"]:
    if len(values) != n_tasks:
        raise ValueError(f"the factor '{name}' has {len(values)} values for {n_tasks} tasks")
    codes = np.unique(list(values), return_inverse=True)[1]
    if not codes.any():
        raise ValueError(f"the factor '{name}' has one value only; there is nothing to recover")
    return codes


def _ranks(use: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "G T K"]:
    """The ranks of the tasks for each skill, from 1; equal ones share the mean of theirs."""
    from scipy.stats import rankdata

    return rankdata(use, axis=1)


def _match(
    ranks: Float[np.ndarray, "T K"], members: Bool[np.ndarray, "V T"]
) -> tuple[Int[np.ndarray, "V"], Float[np.ndarray, "V"]]:
    from scipy.optimize import linear_sum_assignment

    n_inside = members.sum(1, keepdims=True)
    pairs = n_inside * (members.shape[1] - n_inside)
    areas = (members @ ranks - n_inside * (n_inside + 1) / 2) / pairs  # (V, K)
    rows, columns = linear_sum_assignment(np.maximum(areas, _CHANCE), maximize=True)
    skills, scores = np.full(len(members), -1), np.full(len(members), _CHANCE)
    tells = areas[rows, columns] > _CHANCE
    skills[rows[tells]] = columns[tells]
    scores[rows[tells]] = areas[rows[tells], columns[tells]]
    return skills, scores


def _scores(
    use: Float[np.ndarray, "G T K"],
    ranks: Float[np.ndarray, "G T K"],
    labels: Mapping[str, Int[np.ndarray, "T"]],
) -> Float[np.ndarray, "F 2"]:
    """Agreement and matching of every factor, means over the groups."""
    sizes = [int(row.max()) + 1 for row in labels.values()]
    ends = np.cumsum(sizes)[:-1]
    members = np.concatenate(
        [row == np.arange(n)[:, None] for row, n in zip(labels.values(), sizes, strict=True)]
    )
    found = np.zeros((len(use), len(sizes), 2))
    for group, (group_use, group_ranks) in enumerate(zip(use, ranks, strict=True)):
        skills, scores = _match(group_ranks, members)
        parts = zip(np.split(skills, ends), np.split(scores, ends), labels.values(), strict=True)
        for factor, (own, own_scores, row) in enumerate(parts):
            clusters = _most_used(group_use, own[own >= 0])
            agreement = adjusted_mutual_information(row[None], clusters)[0]
            found[group, factor] = agreement, own_scores.mean()
    return found.mean(0)


def _most_used(use: Float[np.ndarray, "T K"], skills: Int[np.ndarray, "N"]) -> Int[np.ndarray, "T"]:
    """The skill that each task uses most, from 1; 0 where it uses all alike."""
    if not len(skills):
        return np.zeros(len(use), dtype=int)
    chosen = use[:, skills]
    alike = chosen.max(1) == chosen.min(1)
    # Of a single skill, those who use it more than the mean task does.
    if len(skills) == 1:
        return (chosen[:, 0] > chosen.mean()).astype(int)
    return np.where(alike, 0, chosen.argmax(1) + 1)
