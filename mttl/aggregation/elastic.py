r"""Merging in which every single weight counts as much as its Fisher information says.

A parameter that a model's answers hardly depend on may be moved or removed at little cost. The
diagonal of the Fisher information (`mttl.aggregation.fisher`) measures that dependence, and here it
weighs both the base and the task vectors.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from mttl.io.errors import require_positive

FLOOR = 1e-6


def elastic_removal(
    base: Float[Tensor, "*shape"],
    base_fisher: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    fishers: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
    *,
    base_weight: float = 1.0,
    floor: float = FLOOR,
    ceiling: float | None = None,
) -> Float[Tensor, "*shape"]:
    r"""Elastic weight removal (EWR): add and remove task vectors, weighed by Fisher information.

    .. math::

        \theta' = \frac{\lambda_0 f_0 \theta_0 + \sum_i \lambda_i f_i \tau_i}{Z}, \qquad
        Z = \lambda_0 f_0 + \sum_i |\lambda_i| f_i

    with every Fisher information f held within [floor, ceiling]. The sign of :math:`\lambda_i` says
    whether a vector is added (an expert) or removed (an anti-expert); Z takes its magnitude.

    The numerator holds task vectors and not models, but Z holds their Fisher information. So the
    base itself shrinks by :math:`\lambda_0 f_0 / Z`, most where a vector's information is large
    beside the base's: there the weight is removed. Where both rest on the floor it shrinks by
    :math:`1 / (1 + \sum_i |\lambda_i|)`, which for large λ is felt by the whole network.

    Two settings are published as EWR: the paper's algorithm, with λ0 = 1, one vector per expert and
    anti-expert, λ = 0.15 for an anti-expert and no ceiling; and, in the released code, CaPE with
    Fisher information: one vector :math:`\theta_E - \theta_A`, λ0 = 1 − λ, and a ceiling of 1e6.

    Args:
        base: A parameter of the base, θ0.
        base_fisher: Its Fisher information f0, on the base's data.
        vectors: Task vectors τ = θ − θ0, of all experts and anti-experts.
        fishers: The Fisher information of each, at the tuned model on its own data.
        weights: λ of each vector, negative for anti-experts.
        base_weight: λ0.
        floor: The smallest Fisher information; larger values are kept.
        ceiling: The largest, if any.

    Raises:
        ValueError: If the numbers of vectors, weights and Fisher tensors differ, or ``base_weight``
            or ``floor`` is not positive.

    References:
        Daheim et al., *Elastic Weight Removal for Faithful and Abstractive Dialogue Generation*,
        NAACL 2024, arXiv:2303.17574.
    """
    require_positive(base_weight=base_weight, floor=floor)
    normaliser = base_weight * base_fisher.clamp(floor, ceiling)
    merged = normaliser * base
    for vector, fisher, weight in zip(vectors, fishers, weights, strict=True):
        bounded = fisher.clamp(floor, ceiling)
        merged.addcmul_(bounded, vector, value=weight)
        normaliser.add_(bounded, alpha=abs(weight))
    return merged.div_(normaliser)


def fisher_average(
    base: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    fishers: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
    *,
    floor: float = FLOOR,
) -> Float[Tensor, "*shape"]:
    r"""Average models, each weight by its Fisher information.

    .. math::

        \theta' = \frac{\sum_i \lambda_i f_i \theta_i}{\sum_i \lambda_i f_i}
                = \theta_0 + \frac{\sum_i \lambda_i f_i \tau_i}{\sum_i \lambda_i f_i}

    The second form is computed: it keeps the digits of small changes. The base has no part in the
    average but as a place to measure from. Arguments are those of `elastic_removal`.

    Raises:
        ValueError: If the numbers of vectors, weights and Fisher tensors differ or are 0, or a
            weight or the floor is not positive.

    References:
        Matena and Raffel, *Merging Models with Fisher-Weighted Averaging*, NeurIPS 2022,
        arXiv:2111.09832.
    """
    require_positive(floor=floor)
    if not vectors or min(weights) <= 0:
        raise ValueError(
            f"weights ({list(weights)}) must be positive, and there must be at least one: an "
            "average cannot subtract"
        )
    weighed = [
        weight * fisher.clamp(floor) for weight, fisher in zip(weights, fishers, strict=True)
    ]
    total = sum(weighed[1:], start=weighed[0].clone())
    change = sum(
        (part * vector for part, vector in zip(weighed[1:], vectors[1:], strict=True)),
        start=weighed[0] * vectors[0],
    )
    return base + change / total
