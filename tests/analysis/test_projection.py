import numpy as np
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from mttl.analysis.projection import (
    on_components,
    principal_components,
    task_rows,
    task_similarity,
)


def test_similarity_against_numpy_and_scikit_learn() -> None:
    weights = np.random.default_rng(0).uniform(size=(3, 5, 4))
    rows = task_rows(weights)
    np.testing.assert_allclose(task_similarity(weights), np.corrcoef(rows), atol=1e-12)
    cosine = task_similarity(weights, "cosine")
    np.testing.assert_allclose(cosine, cosine_similarity(rows), atol=1e-12)
    # Tasks without a direction are like each other only.
    weights = np.array([[[0.5, 0.5], [0.1, 0.1], [1.0, 0.0]]])
    np.testing.assert_array_equal(task_similarity(weights), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


def test_against_scikit_learn() -> None:
    weights = np.random.default_rng(0).uniform(size=(3, 7, 4))
    points, shares = principal_components(weights)
    reference = PCA(2).fit(task_rows(weights))
    expected = reference.transform(task_rows(weights))
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-12)
    np.testing.assert_allclose(shares, reference.explained_variance_ratio_)
    # The sign is fixed.
    assert (points[np.abs(points).argmax(0), [0, 1]] > 0).all()
    # Other rows are placed on the same map; of two tasks there is one direction.
    np.testing.assert_allclose(on_components(weights, weights.swapaxes(0, 1)), points, atol=1e-12)
    two = weights[:, :2]
    assert np.abs(on_components(two, two.swapaxes(0, 1))[:, 1]).max() < 1e-12
    # Tasks on a line, and in one point.
    line, shares = principal_components(np.array([[[0.0], [1.0], [3.0]]]))
    np.testing.assert_allclose(line, [[-4 / 3, 0], [-1 / 3, 0], [5 / 3, 0]], atol=1e-12)
    np.testing.assert_allclose(shares, [1, 0])
    point, shares = principal_components(np.ones((2, 3, 4)))
    np.testing.assert_array_equal(point, np.zeros((3, 2)))
    np.testing.assert_array_equal(shares, [0, 0])
