import numpy as np
import pytest

from mttl.analysis.clustering import task_clusters, task_order, task_tree

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


def test_neighbouring_leaves_are_as_alike_as_the_tree_allows() -> None:
    # 0 and 3 (0.3) are the most similar of different clusters; they meet in the middle.
    assert task_order(task_tree(SIMILARITY)).tolist() in ([2, 0, 3, 1], [1, 3, 0, 2])


def test_clusters() -> None:
    tree = task_tree(SIMILARITY)
    first, second, third, fourth = task_clusters(tree, 2).tolist()
    assert first == third != second == fourth
    assert len(set(task_clusters(tree, 4).tolist())) == 4
