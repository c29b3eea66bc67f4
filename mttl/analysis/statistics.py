"""Four statistics of a routing matrix: discreteness, active cells, usage and effective skills.

References:
    Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, equations 8 to 10; the direction of
    discreteness as in the EACL 2023 version, appendix D (1 is binary). The effective number is
    that of Hill, *Diversity and Evenness*, Ecology 1973, of order 1.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def discreteness(probabilities: Float[Tensor, "G T H K"]) -> float:
    """Return 1 minus the mean entropy of the cells in bits: 1 for a binary matrix, 0 for 0.5."""
    p = probabilities.double()
    bits = (torch.special.entr(p) + torch.special.entr(1 - p)) / math.log(2)
    return float(1 - bits.mean())


def active_cells(probabilities: Float[Tensor, "G T H K"]) -> float:
    """Return the share of active cells: those with a probability above one half.

    The paper calls it sparsity; it grows as the matrix gets denser.
    """
    return float((probabilities > 0.5).double().mean())


def usage(probabilities: Float[Tensor, "G T H K"]) -> float:
    """Return how evenly skills are used: the entropy of the column sums over its maximum.

    Averaged over groups and heads; 1 if all skills are used equally, 0 if one serves all.
    """
    n_skills = probabilities.shape[-1]
    if n_skills == 1:
        return 1.0
    columns = probabilities.double().sum(dim=1)  # (G, H, K)
    shares = columns / columns.sum(-1, keepdim=True).clamp_min(1e-12)
    return float((torch.special.entr(shares).sum(-1) / math.log(n_skills)).mean())


def effective_skills(use: Float[Tensor, "G T H K"]) -> Float[Tensor, "T"]:
    r"""Return how many skills each task mixes, by effect.

    With :math:`q` the row of a task divided by its sum, :math:`\exp(-\sum_k q_k \log q_k)`: n for
    n equally used skills, 1 for a single one, 0 for a row without any. Averaged over groups and
    heads; the mean of the result is the statistic of the whole matrix.
    """
    total = use.double().sum(-1, keepdim=True)
    shares = use.double() / torch.where(total > 0, total, 1.0)
    numbers = torch.special.entr(shares).sum(-1).exp()  # (G, T, H)
    return torch.where(total[..., 0] > 0, numbers, 0.0).mean(dim=(0, 2))
