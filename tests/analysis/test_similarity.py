import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from mttl.analysis.similarity import task_rows, task_similarity


@pytest.fixture
def weights() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(3, 5, 4))


def test_against_numpy_and_scikit_learn(weights: np.ndarray) -> None:
    rows = task_rows(weights)
    np.testing.assert_allclose(task_similarity(weights), np.corrcoef(rows), atol=1e-12)
    cosine = task_similarity(weights, "cosine")
    np.testing.assert_allclose(cosine, cosine_similarity(rows), atol=1e-12)


def test_tasks_without_a_direction_are_like_each_other_only() -> None:
    weights = np.array([[[0.5, 0.5], [0.1, 0.1], [1.0, 0.0]]])
    np.testing.assert_array_equal(task_similarity(weights), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
