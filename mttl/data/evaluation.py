"""Which rows make up the batches of validation and scoring: every row exactly once."""

import math
from collections.abc import Sequence

import numpy as np


def evaluation_batches(
    lengths: Sequence[int] | np.ndarray,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> list[list[int]]:
    """Deal every row exactly once over the ranks, in batches of rows of similar length.

    Rows are sorted by length, cut into global batches whose sizes differ by one at most, and
    these are put into a fixed random order: a validation that is limited to the first batches
    then sees all lengths, and not the shortest rows only. Every rank gets the same number of
    batches, so that processes that share a model run it together; where there are too few rows for
    that, some batches are empty.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    n_batches = math.ceil(len(order) / (batch_size * world_size))
    if n_batches == 0:
        return []
    parts = np.array_split(order, n_batches)
    shuffled = np.random.default_rng(0).permutation(n_batches)
    return [parts[i][rank::world_size].tolist() for i in shuffled]
