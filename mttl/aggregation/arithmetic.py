r"""Task arithmetic: models as sums of a base and of what training changed.

A task vector is :math:`\tau_i = \theta_i - \theta_0`. Adding it makes the base better at what i was
trained on, subtracting it makes it forget that. All functions take one tensor at a time, or any
range of it, so that they serve models of any size.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


def task_vector(
    base: Float[Tensor, "*shape"], tuned: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Return what training changed: ``tuned - base``."""
    return tuned - base


def add_task_vectors(
    base: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
) -> Float[Tensor, "*shape"]:
    r"""Return :math:`\theta_0 + \sum_i \lambda_i \tau_i`.

    Args:
        base: A parameter of the base.
        vectors: What each model changed of it.
        weights: One factor per vector; negative ones forget.

    Raises:
        ValueError: If there are not as many weights as vectors.

    References:
        Ilharco et al., *Editing Models with Task Arithmetic*, ICLR 2023, arXiv:2212.04089.
    """
    check_weights(vectors, weights)
    merged = base.clone()
    for vector, weight in zip(vectors, weights, strict=True):
        merged.add_(vector, alpha=weight)
    return merged


def contrast(
    base: Float[Tensor, "*shape"],
    expert: Float[Tensor, "*shape"],
    anti_expert: Float[Tensor, "*shape"],
    weight: float = 1.0,
) -> Float[Tensor, "*shape"]:
    r"""Contrastive parameter ensembling (CaPE): :math:`\theta_0 + \lambda (\theta_E - \theta_A)`.

    Expert and anti-expert are both tuned from the base: what they have in common cancels.

    Args:
        base: A parameter of the base.
        expert: What the expert changed of it, ``θ_E − θ_0``.
        anti_expert: What the anti-expert changed of it, ``θ_A − θ_0``.
        weight: The factor λ.

    References:
        Choubey et al., *CaPE: Contrastive Parameter Ensembling for Reducing Hallucination in
        Abstractive Summarization*, Findings of ACL 2023, arXiv:2110.07166.
    """
    return add_task_vectors(base, [expert, anti_expert], [weight, -weight])


def check_weights(vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
    """Refuse a number of weights that is not that of the vectors.

    Raises:
        ValueError: If they differ.
    """
    if len(vectors) != len(weights):
        raise ValueError(
            f"there are {len(vectors)} task vectors and {len(weights)} weights; give one weight "
            "per vector"
        )
