r"""Task arithmetic, DARE and TIES: models as sums of a base and of what training changed.

A task vector is :math:`\tau_i = \theta_i - \theta_0`. Adding it makes the base better at what i was
trained on, subtracting it makes it forget that. Functions of this package that merge take one
tensor at a time, or any range of it, so that they serve models of any size.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mttl.config.enums import check_density
from mttl.io.errors import require_one_of


def add_task_vectors(
    base: Float[Tensor, "*shape"],
    vectors: Sequence[Float[Tensor, "*shape"]],
    weights: Sequence[float],
) -> Float[Tensor, "*shape"]:
    r"""Return :math:`\theta_0 + \sum_i \lambda_i \tau_i`.

    Contrastive parameter ensembling (CaPE) is this with the vectors of an expert and of an
    anti-expert and the weights λ and −λ: what they have in common cancels.

    References:
        Ilharco et al., *Editing Models with Task Arithmetic*, ICLR 2023, arXiv:2212.04089.
        Choubey et al., *CaPE: Contrastive Parameter Ensembling for Reducing Hallucination in
        Abstractive Summarization*, Findings of ACL 2023, arXiv:2110.07166.
    """
    merged = base.clone()
    for vector, weight in zip(vectors, weights, strict=True):
        merged.add_(vector, alpha=weight)
    return merged


def drop_and_rescale(
    vector: Float[Tensor, "*shape"], density: float, generator: torch.Generator
) -> Float[Tensor, "*shape"]:
    r"""Keep every entry with probability d, the density: :math:`m \odot \tau / d`.

    The expectation is the vector itself. Ranges of a tensor that are drawn one after another with
    one generator get the entries that the whole tensor would have got.

    References:
        Yu et al., *Language Models are Super Mario: Absorbing Abilities from Homologous Models as a
        Free Lunch*, ICML 2024, arXiv:2311.03099.
    """
    check_density(density)
    kept = torch.bernoulli(torch.full_like(vector, density), generator=generator)
    return vector * kept / density


def mask_generator(seed: int, model: int, name: str) -> torch.Generator:
    """Return the generator of one tensor's mask: it depends on no other tensor or model."""
    digest = hashlib.sha256(f"{seed} {model} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


HALF = 16


def kept_count(size: int, density: float) -> int:
    """Return how many of ``size`` entries a density in (0, 1] keeps, rounded down."""
    check_density(density)
    return int(density * size)


@dataclass
class Trimmer:
    """Sets to 0 all but the entries of largest magnitude; give it the ranges in order, once.

    Among entries equal to the smallest one kept, the first are kept. A float32 that is not negative
    has the same order as its bits read as a whole number. So two passes of counting, over the upper
    and then the lower half of the bits, find the k-th magnitude exactly, in a table of 65,536
    counts, for tensors too large to sort or even to hold.
    """

    threshold: int  # the magnitude of the smallest entry to keep, as its bits
    ties: int  # how many entries of just that magnitude to keep

    @classmethod
    def of(cls, ranges: Iterable[Float[Tensor, "..."]], kept: int) -> "Trimmer":
        """Find the threshold in two iterations over ranges; ValueError if one is not finite."""
        if kept == 0:
            return cls(threshold=2**31 - 1, ties=0)
        upper, above = _bucket((_bits(values) >> HALF for values in ranges), kept)
        inside = (
            bits[bits >> HALF == upper] & (2**HALF - 1) for bits in (_bits(part) for part in ranges)
        )
        lower, more = _bucket(inside, kept - above)
        return cls(threshold=upper << HALF | lower, ties=kept - above - more)

    def __call__(self, values: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """Return the next range, trimmed."""
        bits = _bits(values)
        equal = bits == self.threshold
        first = equal & (equal.cumsum(0) <= self.ties)
        self.ties -= int(first.sum())
        return torch.where((bits > self.threshold) | first, values, 0.0)


def _bits(values: Tensor) -> Int[Tensor, "N"]:
    """Return magnitudes as whole numbers of the same order."""
    magnitudes = values.detach().flatten().abs().float()
    if not magnitudes.isfinite().all():
        raise ValueError("a task vector holds values that are not finite; its model is damaged")
    return magnitudes.view(torch.int32)


def _bucket(keys: Iterable[Int[Tensor, "N"]], kept: int) -> tuple[int, int]:
    """Return the key of the ``kept``-th largest, and how many entries have larger keys."""
    counts = torch.zeros(2**HALF, dtype=torch.int64)
    for part in keys:
        counts += torch.bincount(part, minlength=2**HALF)
    from_top = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, kept))
    above = int(from_top[place - 1]) if place else 0
    return 2**HALF - 1 - place, above


def trim(vector: Float[Tensor, "*shape"], density: float) -> Float[Tensor, "*shape"]:
    """Keep the entries of largest magnitude, a share in (0, 1], and set the others to 0."""
    kept = kept_count(vector.numel(), density)
    return Trimmer.of([vector], kept)(vector.flatten()).view_as(vector)


def elect_signs(
    vectors: Sequence[Float[Tensor, "*shape"]], election: str = "total"
) -> Float[Tensor, "*shape"]:
    """Return the sign of every weight: 1 or −1, and 1 where the vectors are even.

    The election sums what vectors change (``"total"``), or counts their signs (``"frequency"``).
    """
    require_one_of(("total", "frequency"), election=election)
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
