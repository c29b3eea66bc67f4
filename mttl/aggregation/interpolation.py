r"""Spherical interpolation and Model Stock: merges between a base and tuned models, by angles."""

from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

PARALLEL = 0.9995  # cosine above which spherical interpolation is linear, as in mergekit


def slerp(
    base: Float[Tensor, "*shape"], tuned: Float[Tensor, "*shape"], share: float
) -> Float[Tensor, "*shape"]:
    r"""Return :math:`(\sin((1-t)\Omega)\, \theta_0 + \sin(t\Omega)\, \theta) / \sin\Omega`.

    Ω is the angle between the flattened tensors, and t the share of the tuned model. Tensors that
    are nearly parallel, opposite or 0 are interpolated linearly.

    References:
        Shoemake, *Animating Rotation with Quaternion Curves*, SIGGRAPH 1985.
    """
    norms = base.norm() * tuned.norm()
    cosine = ((base * tuned).sum() / norms.clamp_min(1e-8)).clamp(-1, 1)
    if norms < 1e-8 or cosine.abs() > PARALLEL:
        return (1 - share) * base + share * tuned
    angle = cosine.acos()
    parts = ((1 - share) * angle).sin() * base + (share * angle).sin() * tuned
    return parts / angle.sin()


def stock_average(
    base: Float[Tensor, "*shape"], vectors: Sequence[Float[Tensor, "*shape"]]
) -> Float[Tensor, "*shape"]:
    r"""Return :math:`\theta_0 + t \bar\tau` (Model Stock).

    .. math::

        t = \frac{n \cos\alpha}{1 + (n - 1) \cos\alpha}

    with the mean cosine of pairs of the n task vectors of a tensor. Where the denominator is 0, the
    base is returned.

    References:
        Jang, Yun and Han, *Model Stock: All We Need Is Just a Few Fine-Tuned Models*, ECCV 2024,
        arXiv:2403.19522.
    """
    n, flat = len(vectors), [vector.flatten() for vector in vectors]
    cosines = [
        (one @ other / (one.norm() * other.norm()).clamp_min(1e-6)).clamp(-1, 1)
        for one, other in combinations(flat, 2)
    ]
    cosine = torch.stack(cosines).mean()
    below = 1 + (n - 1) * cosine
    if below.abs() < 1e-6:
        return base.clone()
    return base + n * cosine / below * sum(vectors, torch.zeros_like(base)) / n
