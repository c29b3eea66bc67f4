"""Tasks as points in the plane."""

from typing import Any

import numpy as np
from jaxtyping import Float

from mttl.analysis.similarity import task_rows


def principal_components(
    weights: Float[np.ndarray, "G T K"],
) -> tuple[Float[np.ndarray, "T 2"], Float[np.ndarray, "2"]]:
    """Project the tasks' rows on the two directions in which they vary most.

    Returns:
        The points, and the share of the variance along each axis. The sign of an axis is fixed:
        its largest coordinate is positive.
    """
    variance = _components(task_rows(weights))[2]
    return on_components(weights, weights.swapaxes(0, 1)), variance[:2] / max(variance.sum(), 1e-12)


def on_components(
    weights: Float[np.ndarray, "G T K"], rows: Float[np.ndarray, "N G K"]
) -> Float[np.ndarray, "N 2"]:
    """Return where other rows are on the map of tasks that `principal_components` draws."""
    centre, axes, _ = _components(task_rows(weights))
    return (rows.reshape(len(rows), -1) - centre) @ axes.T


def _components(
    rows: Float[np.ndarray, "T D"],
) -> tuple[Float[np.ndarray, "D"], Float[np.ndarray, "2 D"], Float[np.ndarray, "N"]]:
    """Return the mean of rows, the two axes, and the variance along all of them."""
    centre = rows.mean(0)
    _, scale, axes = np.linalg.svd(rows - centre, full_matrices=False)
    axes = np.pad(axes[:2], ((0, max(0, 2 - len(axes))), (0, 0)))
    points = (rows - centre) @ axes.T
    largest = points[np.abs(points).argmax(0), [0, 1]]
    return centre, axes * np.where(largest < 0, -1, 1)[:, None], np.pad(scale**2, (0, 2))


def umap_projection(
    weights: Float[np.ndarray, "G T K"], *, n_neighbors: int = 8, seed: int = 0
) -> Float[np.ndarray, "T 2"]:
    """Lay the tasks out so that neighbours by correlation stay neighbours.

    Raises:
        ImportError: If ``umap-learn`` is not installed.

    References:
        McInnes, Healy and Melville, *UMAP: Uniform Manifold Approximation and Projection*,
        arXiv:1802.03426.
    """
    import umap  # type: ignore[import-not-found]

    rows = task_rows(weights)
    projection: Any = umap.UMAP(
        n_neighbors=min(n_neighbors, len(rows) - 1),
        metric="correlation",
        init="random",  # the spectral start fails for a handful of tasks
        random_state=seed,
        n_jobs=1,  # what a seed needs
    )
    return np.asarray(projection.fit_transform(rows))
