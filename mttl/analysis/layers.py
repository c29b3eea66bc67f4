"""The statistics of routing, layer by layer."""

import re
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from mttl.analysis.statistics import active_cells, discreteness, effective_skills, usage

ACTIVE, EFFECTIVE = "active cells", "effective skills"
STATISTICS = ("discreteness", ACTIVE, "usage", EFFECTIVE)
STACKS = ("encoder", "decoder")
ALL = "all"


def layer_statistics(probabilities: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "G 4"]:
    """Return `STATISTICS` of every group of layers, a row each; values are clamped to [0, 1]."""
    rows = torch.from_numpy(np.asarray(probabilities, dtype=np.float64)).clamp(0, 1)
    return np.array(
        [
            (discreteness(p), active_cells(p), usage(p), float(effective_skills(p).mean()))
            for p in rows[:, None, :, None]  # one group of one head at a time
        ]
    )


def stack_of(group: str) -> str:
    """Return ``encoder`` or ``decoder`` for a group inside one of them, else ``""``."""
    parts = re.split(r"[./]", group)
    return next((stack for stack in STACKS if stack in parts), "")


def stacks_of(groups: Sequence[str]) -> list[str]:
    """Return the stack of every group; ``""`` for all where the model is of one stack."""
    stacks = [stack_of(group) for group in groups]
    return stacks if set(STACKS) <= set(stacks) else [""] * len(stacks)


def stack_means(
    values: Float[np.ndarray, "G N"], groups: Sequence[str]
) -> dict[str, Float[np.ndarray, "N"]]:
    """Return the means over all groups, and of encoder and decoder apart where there are both."""
    stacks = np.array(stacks_of(groups))
    means = {stack: values[stacks == stack].mean(0) for stack in STACKS if stack in stacks}
    return means | {ALL: values.mean(0)}


def effective_skills_over_training(
    weights: Float[np.ndarray, "S G T K"], groups: Sequence[str]
) -> dict[str, Float[np.ndarray, "S"]]:
    """Return the mean effective number of skills per task at every step, by stack.

    It is the one statistic that mixing weights tell: normalising a row does not change it.
    """
    use = torch.from_numpy(np.asarray(weights, dtype=np.float64)).clamp_min(0)
    numbers = np.array(
        [[effective_skills(row[None, :, None]).mean() for row in step] for step in use]
    )  # (S, G)
    means = stack_means(numbers.T, groups)
    return {EFFECTIVE if name == ALL else f"{name}/{EFFECTIVE}": row for name, row in means.items()}
