"""Similarity of tasks by their routing, and projections of tasks to the plane."""

from typing import Literal

import numpy as np
from jaxtyping import Float


def task_rows(weights: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "T GK"]:
    """Return one row per task: its weights in all groups, concatenated."""
    return np.moveaxis(np.asarray(weights, dtype=np.float64), 1, 0).reshape(weights.shape[1], -1)


def task_similarity(
    weights: Float[np.ndarray, "G T K"], measure: Literal["correlation", "cosine"] = "correlation"
) -> Float[np.ndarray, "T T"]:
    r"""Return the similarity of all pairs of tasks by their routing.

    With :math:`x_t` the row of task t (see `task_rows`), the cosine is
    :math:`x_s \cdot x_t / \lVert x_s \rVert \lVert x_t \rVert`; the correlation is the cosine of
    rows less their mean. It is the default, since cosines of positive weights are all near 1. Rows
    that are zero (constant for the correlation) have similarity 1 to each other and 0 to the rest.
    """
    rows = task_rows(weights)
    if measure == "correlation":
        rows = rows - rows.mean(1, keepdims=True)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    flat = norms <= 1e-9  # constant up to rounding
    rows = np.where(flat, 0, rows / np.where(flat, 1, norms))
    similarity = np.clip(rows @ rows.T + (flat & flat.T), -1, 1)
    np.fill_diagonal(similarity, 1)
    return similarity


def principal_components(
    weights: Float[np.ndarray, "G T K"],
) -> tuple[Float[np.ndarray, "T 2"], Float[np.ndarray, "2"]]:
    """Return the tasks' first two principal components, and their shares of the variance.

    The sign of an axis is fixed: the coordinate of largest magnitude is positive.
    """
    variance = _components(task_rows(weights))[2]
    return on_components(weights, weights.swapaxes(0, 1)), variance[:2] / max(variance.sum(), 1e-12)


def on_components(
    weights: Float[np.ndarray, "G T K"], rows: Float[np.ndarray, "N G K"]
) -> Float[np.ndarray, "N 2"]:
    """Return the coordinates of other rows on the axes of `principal_components`."""
    centre, axes, _ = _components(task_rows(weights))
    return (rows.reshape(len(rows), -1) - centre) @ axes.T


def _components(
    rows: Float[np.ndarray, "T D"],
) -> tuple[Float[np.ndarray, "D"], Float[np.ndarray, "2 D"], Float[np.ndarray, "N"]]:
    """Return the mean of the rows, the first two axes, and the variance along all axes."""
    centre = rows.mean(0)
    _, scale, axes = np.linalg.svd(rows - centre, full_matrices=False)
    axes = np.pad(axes[:2], ((0, max(0, 2 - len(axes))), (0, 0)))
    points = (rows - centre) @ axes.T
    largest = points[np.abs(points).argmax(0), [0, 1]]
    return centre, axes * np.where(largest < 0, -1, 1)[:, None], np.pad(scale**2, (0, 2))
