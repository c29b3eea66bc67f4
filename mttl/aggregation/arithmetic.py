r"""Task arithmetic: models as sums of a base and of what training changed.

A task vector is :math:`\tau_i = \theta_i - \theta_0`. Adding it makes the base better at what i was
trained on, subtracting it makes it forget that. Functions of this package that merge take one
tensor at a time, or any range of it, so that they serve models of any size.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


def add_task_vectors(
    base: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
) -> Float[Tensor, "*shape"]:
    r"""Return :math:`\theta_0 + \sum_i \lambda_i \tau_i`.

    Contrastive parameter ensembling (CaPE) is this with the vectors of an expert and of an
    anti-expert and the weights λ and −λ: what they have in common cancels.

    Args:
        base: A parameter of the base.
        vectors: What each model changed of it.
        weights: One factor per vector; negative ones forget.

    References:
        Ilharco et al., *Editing Models with Task Arithmetic*, ICLR 2023, arXiv:2212.04089.
        Choubey et al., *CaPE: Contrastive Parameter Ensembling for Reducing Hallucination in
        Abstractive Summarization*, Findings of ACL 2023, arXiv:2110.07166.
    """
    merged = base.clone()
    for vector, weight in zip(vectors, weights, strict=True):
        merged.add_(vector, alpha=weight)
    return merged
