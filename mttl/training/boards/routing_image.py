"""The routing as an image for boards, without a library of figures."""

import numpy as np
from jaxtyping import Float, UInt8

CELL, GAP = 8, 4  # pixels
COLOR = np.array([8, 48, 107])  # of the largest weight; no weight is white


def routing_image(weights: Float[np.ndarray, "G T K"]) -> UInt8[np.ndarray, "H W 3"]:
    """Return tasks by skills, the groups beside one another."""
    shares = np.clip(weights / max(float(weights.max()), 1e-12), 0, 1)
    cells = shares.repeat(CELL, axis=1).repeat(CELL, axis=2)
    gap = np.zeros((cells.shape[1], GAP))
    columns = [part for group in cells for part in (gap, group)][1:]
    dark = np.concatenate(columns, axis=1)[..., None]
    return (255 - dark * (255 - COLOR)).astype(np.uint8)
