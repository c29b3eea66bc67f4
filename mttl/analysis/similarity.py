"""Which tasks have similar routing."""

from typing import Literal

import numpy as np
from jaxtyping import Float


def task_rows(weights: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "T GK"]:
    """Return one row per task: its weights in all groups, one after the other."""
    return np.moveaxis(np.asarray(weights, dtype=np.float64), 1, 0).reshape(weights.shape[1], -1)


def task_similarity(
    weights: Float[np.ndarray, "G T K"], measure: Literal["correlation", "cosine"] = "correlation"
) -> Float[np.ndarray, "T T"]:
    r"""Compare all tasks by their routing.

    With :math:`x_t` the row of task t (see `task_rows`), the cosine is
    :math:`x_s \cdot x_t / \lVert x_s \rVert \lVert x_t \rVert`; the correlation is the cosine of
    rows less their mean. It is the default: mixing weights are positive, so that all of their
    cosines are near 1. Rows without a direction (constant ones, under correlation) are like each
    other and unlike the rest.
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
