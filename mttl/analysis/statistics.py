"""Statistics of a routing matrix, as a whole and by layer, and permutation tests.

The four statistics are discreteness, active cells, usage and effective skills.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, equations 8 to 10; the direction of
    discreteness as in the EACL 2023 version, appendix D (1 is binary). The effective number is
    that of Hill, *Diversity and Evenness*, Ecology 1973, of order 1.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

ACTIVE, EFFECTIVE = "active cells", "effective skills"
STATISTICS = ("discreteness", ACTIVE, "usage", EFFECTIVE)
STACKS = ("encoder", "decoder")
ALL = "all"


def discreteness(probabilities: Float[Tensor, "G T H K"]) -> float:
    """Return 1 minus the mean entropy of the cells in bits: 1 for a binary matrix, 0 for 0.5."""
    p = probabilities.double()
    bits = (torch.special.entr(p) + torch.special.entr(1 - p)) / math.log(2)
    return float(1 - bits.mean())


def active_cells(probabilities: Float[Tensor, "G T H K"]) -> float:
    """Return the share of cells with a probability above one half.

    The paper calls this sparsity, although it is higher for denser matrices.
    """
    return float((probabilities > 0.5).double().mean())


def usage(probabilities: Float[Tensor, "G T H K"]) -> float:
    """Return the evenness of skill use: the entropy of the column sums over its maximum.

    Averaged over groups and heads; 1 if all skills are used equally, 0 if all tasks use one skill.
    """
    n_skills = probabilities.shape[-1]
    if n_skills == 1:
        return 1.0
    columns = probabilities.double().sum(dim=1)  # (G, H, K)
    shares = columns / columns.sum(-1, keepdim=True).clamp_min(1e-12)
    return float((torch.special.entr(shares).sum(-1) / math.log(n_skills)).mean())


def effective_skills(use: Float[Tensor, "G T H K"]) -> Float[Tensor, "T"]:
    r"""Return the effective number of skills of each task.

    It is :math:`\exp(-\sum_k q_k \log q_k)` with :math:`q` the task's row divided by its sum: n
    for n equally used skills, 1 for a single one, 0 for a row of zeros. Averaged over groups and
    heads; the mean of the result is the statistic of the whole matrix.
    """
    total = use.double().sum(-1, keepdim=True)
    shares = use.double() / torch.where(total > 0, total, 1.0)
    numbers = torch.special.entr(shares).sum(-1).exp()  # (G, T, H)
    return torch.where(total[..., 0] > 0, numbers, 0.0).mean(dim=(0, 2))


def layer_statistics(probabilities: Float[np.ndarray, "G T K"]) -> Float[np.ndarray, "G 4"]:
    """Return `STATISTICS` of every group of layers, a row each; values are clamped to [0, 1]."""
    rows = torch.from_numpy(np.asarray(probabilities, dtype=np.float64)).clamp(0, 1)
    return np.array(
        [
            (discreteness(p), active_cells(p), usage(p), float(effective_skills(p).mean()))
            for p in rows[:, None, :, None]  # one group, with one head, at a time
        ]
    )


def stack_of(group: str) -> str:
    """Return ``encoder`` or ``decoder`` for a group inside one of them, else ``""``."""
    return next((stack for stack in STACKS if stack in re.split(r"[./]", group)), "")


def stacks_of(groups: Sequence[str]) -> list[str]:
    """Return the stack of every group; ``""`` for all groups if the model has one stack."""
    stacks = [stack_of(group) for group in groups]
    return stacks if set(STACKS) <= set(stacks) else [""] * len(stacks)


def stack_means(
    values: Float[np.ndarray, "G N"], groups: Sequence[str]
) -> dict[str, Float[np.ndarray, "N"]]:
    """Return the means over all groups, and those of encoder and decoder if there are both."""
    stacks = np.array(stacks_of(groups))
    means = {stack: values[stacks == stack].mean(0) for stack in STACKS if stack in stacks}
    return means | {ALL: values.mean(0)}


def effective_skills_over_training(
    weights: Float[np.ndarray, "S G T K"], groups: Sequence[str]
) -> dict[str, Float[np.ndarray, "S"]]:
    """Return the mean effective number of skills per task at every step, by stack.

    It follows from mixing weights, since normalising a row does not change it.
    """
    use = torch.from_numpy(np.asarray(weights, dtype=np.float64)).clamp_min(0)
    # (S, G)
    numbers = [[effective_skills(row[None, :, None]).mean() for row in step] for step in use]
    means = stack_means(np.array(numbers).T, groups)
    return {EFFECTIVE if name == ALL else f"{name}/{EFFECTIVE}": row for name, row in means.items()}


@dataclass(frozen=True)
class PermutationTest:
    """A value and its permutation baseline."""

    value: float
    mean: float
    percentile_95: float
    p_value: float


def permutation_test(value: float, permuted: Float[np.ndarray, "N"]) -> PermutationTest:
    r"""Return a permutation test of a value against those of permuted data.

    The p-value is :math:`(1 + \#\{b \ge v\}) / (1 + N)`, which is never 0 (Phipson and Smyth,
    *Permutation P-values Should Never Be Zero*, SAGMB 2010).
    """
    # Equal values may differ by rounding.
    reached = int((permuted >= value - 1e-12).sum())
    return PermutationTest(
        value=float(value),
        mean=float(permuted.mean()),
        percentile_95=float(np.percentile(permuted, 95)),
        p_value=(1 + reached) / (1 + len(permuted)),
    )
