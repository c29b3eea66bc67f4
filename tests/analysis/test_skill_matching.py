import itertools

import numpy as np
import pytest

from mttl.analysis.skill_matching import (
    align_groups,
    group_agreement,
    match_skills,
    matched,
    matched_correlation,
)


@pytest.fixture
def weights() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(2, 12, 4))


def shuffled(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same skills in another order in each group."""
    orders = np.array([[2, 0, 3, 1], [1, 3, 2, 0]])
    return matched(weights, orders), orders


def test_renumbered_skills_are_found_again(weights: np.ndarray) -> None:
    other, orders = shuffled(weights)
    pairs = match_skills(weights, other)
    np.testing.assert_array_equal(np.take_along_axis(orders, pairs, 1), [range(4)] * 2)
    np.testing.assert_array_equal(matched(other, pairs), weights)


def test_the_pairs_are_the_best_of_all(weights: np.ndarray) -> None:
    other = np.random.default_rng(1).uniform(size=weights.shape)
    by_group, _ = matched_correlation(weights, other, n_permutations=1)
    for group, found in enumerate(by_group):
        table = np.corrcoef(weights[group].T, other[group].T)[:4, 4:]
        best = max(
            np.mean([table[skill, pair] for skill, pair in enumerate(pairs)])
            for pairs in itertools.permutations(range(4))
        )
        assert found == pytest.approx(best)


def test_the_same_skills_stand_out_from_chance_and_noise_does_not(weights: np.ndarray) -> None:
    by_group, same = matched_correlation(weights, shuffled(weights)[0], n_permutations=99)
    assert by_group == pytest.approx([1, 1])
    assert same.value == pytest.approx(1)
    # Matching finds correlation in noise too: that is why there is a baseline.
    assert 0.1 < same.mean < same.percentile_95 < 0.9
    assert same.p_value == 1 / 100
    noise = np.random.default_rng(2).uniform(size=weights.shape)
    _, found = matched_correlation(weights, noise, n_permutations=99)
    assert found.p_value > 0.05
    assert found == matched_correlation(weights, noise, n_permutations=99)[1]


def test_groups_of_one_run_are_ordered_alike_and_by_use() -> None:
    """Six groups with the same skills in orders of their own, and a little noise."""
    generator = np.random.default_rng(0)
    skills = generator.uniform(size=(20, 5)) * [1.0, 0.9, 0.8, 0.7, 0.6]
    orders = np.stack([generator.permutation(5) for _ in range(6)])
    weights = skills[:, orders].swapaxes(0, 1) + 0.01 * generator.normal(size=(6, 20, 5))
    pairs = align_groups(weights)
    places = np.take_along_axis(orders, pairs, 1)
    assert (places == places[0]).all()
    use = matched(weights, pairs).mean((0, 1))
    assert (np.diff(use) <= 0).all()
    found = group_agreement(weights, n_permutations=19)
    assert found is not None
    assert found.value > 0.99
    assert (found.percentile_95 < 0.5, found.p_value) == (True, 1 / 20)
