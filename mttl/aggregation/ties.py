"""TIES: trim each task vector, elect a sign per weight, and average those that agree with it."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mttl.aggregation.magnitude import Trimmer, kept_count
from mttl.io.errors import require_one_of

ELECTIONS = ("total", "frequency")


def trim(vector: Float[Tensor, "*shape"], density: float) -> Float[Tensor, "*shape"]:
    """Keep the entries of largest magnitude, a share rounded down, and set the others to 0.

    Among equals the first are kept.

    Raises:
        ValueError: If the density is not in (0, 1].
    """
    kept = kept_count(vector.numel(), density)
    return Trimmer.of([vector], kept)(vector.flatten()).view_as(vector)


def elect_signs(
    vectors: Sequence[Float[Tensor, "*shape"]], election: str = "total"
) -> Float[Tensor, "*shape"]:
    """Return the sign of every weight: 1 or −1, and 1 where the vectors are even.

    Raises:
        ValueError: If the election is unknown.
    """
    require_one_of(ELECTIONS, election=election)
    stacked = torch.stack(list(vectors))
    votes = (stacked if election == "total" else stacked.sign()).sum(0)
    return torch.where(votes >= 0, 1.0, -1.0).to(stacked)


def merge_agreeing(
    base: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
    *,
    election: str = "total",
    scale: float = 1.0,
) -> Float[Tensor, "*shape"]:
    r"""Add the mean of those task vectors that agree with the elected sign, weight by weight.

    .. math::

        \theta' = \theta_0 + \frac{s}{|A|} \sum_{i \in A} \lambda_i \tau_i, \qquad
        A = \{i : \mathrm{sign}(\tau_i) = \gamma\}

    The weights λ have no vote on the sign γ. Vectors are trimmed; s is the ``scale``.

    Raises:
        ValueError: If there are not as many weights as vectors, or the election is unknown.

    References:
        Yadav et al., *TIES-Merging: Resolving Interference When Merging Models*, NeurIPS 2023,
        arXiv:2306.01708.
    """
    signs = elect_signs(vectors, election)
    change = torch.zeros_like(base)
    count = torch.zeros_like(base)
    for vector, weight in zip(vectors, weights, strict=True):
        agrees: Bool[Tensor, "*shape"] = vector.sign() == signs
        change += torch.where(agrees, vector, 0.0) * weight
        count += agrees
    return base + scale * change / count.clamp_min(1)
