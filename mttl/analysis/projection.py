"""Tasks as points in the plane."""

from collections.abc import Callable

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
    rows = task_rows(weights)
    left, scale, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    points = np.zeros((len(rows), 2))
    points[:, : scale.size] = (left * scale)[:, :2]
    largest = points[np.abs(points).argmax(0), [0, 1]]
    variance = np.pad(scale**2, (0, 2))
    return points * np.where(largest < 0, -1, 1), variance[:2] / max(variance.sum(), 1e-12)


def on_components(
    weights: Float[np.ndarray, "G T K"], rows: Float[np.ndarray, "N G K"]
) -> Float[np.ndarray, "N 2"]:
    """Return where other rows are on the map of tasks that `principal_components` draws."""
    known = task_rows(weights)
    centre = known.mean(0)
    axes = np.linalg.svd(known - centre, full_matrices=False)[2][:2]
    axes = np.pad(axes, ((0, 2 - len(axes)), (0, 0)))
    points = (known - centre) @ axes.T
    largest = points[np.abs(points).argmax(0), [0, 1]]
    return (rows.reshape(len(rows), -1) - centre) @ axes.T * np.where(largest < 0, -1, 1)


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
    settings = {
        "n_neighbors": min(n_neighbors, len(rows) - 1),
        "metric": "correlation",
        "init": "random",  # the spectral start fails for a handful of tasks
        "random_state": seed,
        "n_jobs": 1,  # what a seed needs
    }
    make: Callable[..., np.ndarray] = umap.UMAP(**settings).fit_transform
    return np.asarray(make(rows))
