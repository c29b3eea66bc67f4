"""Missions repeat from step to step and from slot to slot: encode each distinct one once."""

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor


def distinct_missions(
    missions: UInt8[Tensor, "S T N M"],
) -> tuple[UInt8[Tensor, "T E L"], Int64[Tensor, "S T N"]]:
    """Return the distinct missions of every task, and which of them each frame has.

    ``distinct[t, index[s, t, n]]`` is ``missions[s, t, n]`` without the padding that all missions
    have in common: a recurrent encoder takes as many steps as missions are long.

    Returns:
        The distinct missions, where E is the number of the task that has most (the others repeat
        theirs, so that all tasks have the same shape) and L, at least 1, the length of the longest.
        And the index.
    """
    tokens = without_padding(missions.cpu()).numpy()
    n_steps, n_tasks, n_slots, length = tokens.shape
    found, indices = [], []
    for task in range(n_tasks):
        rows = np.ascontiguousarray(tokens[:, task]).reshape(-1, length)
        # Rows seen as items of `length` bytes are sorted ten times as fast as along an axis.
        distinct, index = np.unique(rows.view(f"V{length}")[:, 0], return_inverse=True)
        found.append(distinct.view(np.uint8).reshape(-1, length))
        indices.append(index.reshape(n_steps, n_slots))
    most = max(map(len, found))
    padded = np.stack([rows[np.arange(most) % len(rows)] for rows in found])
    index = np.stack(indices, axis=1)
    return torch.from_numpy(padded).to(missions.device), torch.from_numpy(index).to(missions.device)


def without_padding(missions: UInt8[Tensor, "*rows M"]) -> UInt8[Tensor, "*rows L"]:
    """Return missions without the columns that only pad; at least one column stays."""
    used = int((missions != 0).flatten(0, -2).any(0).sum())
    return missions[..., : max(1, used)]
