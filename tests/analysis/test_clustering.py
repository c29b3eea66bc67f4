import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list
from sklearn.metrics import adjusted_mutual_info_score

from mttl.analysis.clustering import category_agreement, task_tree
from mttl.analysis.statistics import permutation_test

# Tasks 0 and 2 are similar, and 1 and 3.
SIMILARITY = np.array(
    [[1.0, 0.1, 0.9, 0.3], [0.1, 1.0, 0.2, 0.8], [0.9, 0.2, 1.0, 0.2], [0.3, 0.8, 0.2, 1.0]]
)


def test_merges_by_hand() -> None:
    tree = task_tree(SIMILARITY)
    merges = [(sorted(row[:2].astype(int).tolist()), row[2], row[3]) for row in tree]
    # The mean distance of the pairs: (0.9 + 0.7 + 0.8 + 0.8) / 4
    expected = [([0, 2], 0.1, 2), ([1, 3], 0.2, 2), ([4, 5], 0.8, 4)]
    assert merges == [(pair, pytest.approx(height), n) for pair, height, n in expected]
    # 0 and 3 (0.3) are the most similar of different clusters; they meet in the middle.
    assert leaves_list(tree).tolist() in ([2, 0, 3, 1], [1, 3, 0, 2])


CATEGORIES = ["a", "a", "a", "b", "b", "b", "c", "c", "c"]


def similarity_of(labels: list[str]) -> np.ndarray:
    """Tasks of one label are similar (0.9), others are not (0.1)."""
    names = np.array(labels)
    return np.where(names[:, None] == names, 0.9, 0.1) + 0.1 * np.eye(len(names))


def test_clusters_that_are_the_categories_or_one_for_each_task() -> None:
    found = category_agreement(similarity_of(CATEGORIES), CATEGORIES, n_permutations=200)
    assert found.value == pytest.approx(1)
    # Chance gives 0 on average, by the definition of the adjusted score.
    assert abs(found.mean) < 0.1
    assert found.p_value == pytest.approx(1 / 201, abs=2 / 201)
    found = category_agreement(similarity_of(list("abc")), ["x", "y", "z"], n_permutations=9)
    assert (found.value, found.p_value) == (0, 1)  # no more than chance


def test_the_baseline_against_scikit_learn() -> None:
    clusters = list("aabbbbccc")
    found = category_agreement(similarity_of(clusters), CATEGORIES, n_permutations=40)
    generator = np.random.default_rng(0)
    labels = np.unique(CATEGORIES, return_inverse=True)[1]
    expected = [
        adjusted_mutual_info_score(generator.permutation(labels), clusters) for _ in range(40)
    ]
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.percentile_95 == pytest.approx(np.percentile(expected, 95))


def test_comparison_by_hand() -> None:
    found = permutation_test(3.0, np.array([1.0, 2.0, 3.0, 4.0]))
    # Two of four reach 3, and the value itself is one of five.
    assert (found.value, found.mean, found.p_value) == (3, 2.5, 3 / 5)
    assert found.percentile_95 == pytest.approx(3.85)
    assert permutation_test(5.0, np.array([1.0, 2.0])).p_value == 1 / 3
