r"""Task arithmetic, DARE, DELLA and TIES.

A task vector is :math:`\tau_i = \theta_i - \theta_0`. Adding it to the base improves it on the
data of model i, and subtracting it makes the base forget them. The functions take one tensor at a
time, or ranges of one, so that they support models of any size.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
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

    Contrastive parameter ensembling (CaPE) has the vectors of an expert and an anti-expert, with
    the weights λ and −λ.

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
    vector: Float[Tensor, "*shape"], density: float, generator: torch.Generator, spread: float = 0.0
) -> Float[Tensor, "*shape"]:
    r"""Return :math:`m \odot \tau / d` with a random mask m of density d (DARE).

    The expectation is the vector. Successive ranges of a tensor with one generator get the mask of
    the whole tensor. With a ``spread``, d are the `keep_probabilities` of DELLA, of whole rows.

    References:
        Yu et al., *Language Models are Super Mario: Absorbing Abilities from Homologous Models as a
        Free Lunch*, ICML 2024, arXiv:2311.03099.
    """
    check_density(density)
    shares = torch.full_like(vector, density)
    if spread:
        shares = keep_probabilities(vector, density, spread)
    kept = torch.bernoulli(shares, generator=generator)
    return vector * kept / shares


def keep_probabilities(
    vector: Float[Tensor, "*shape"], density: float, spread: float
) -> Float[Tensor, "*shape"]:
    """Return the probabilities with which DELLA keeps entries.

    They grow with the rank of the magnitude in its row, from ``density - spread`` to
    ``density + spread``.

    References:
        Deep, Bhardwaj and Poria, *DELLA-Merging: Reducing Interference in Model Merging through
        Magnitude-Based Sampling*, 2024, arXiv:2406.11617.
    """
    rows = vector.reshape(-1, vector.shape[-1]) if vector.ndim else vector.reshape(1, 1)
    ranks = rows.abs().argsort(dim=1, stable=True).argsort(dim=1).to(vector.dtype)
    ranks = ranks / max(rows.shape[1] - 1, 1)
    return (density - spread + 2 * spread * ranks).view_as(vector)


def mask_generator(seed: int, model: int, name: str) -> torch.Generator:
    """Return the generator of a tensor's mask, which is independent of other tensors and models."""
    digest = hashlib.sha256(f"{seed} {model} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


HALF = 16


def kept_count(size: int, density: float) -> int:
    """Return ``density`` times ``size``, rounded down."""
    check_density(density)
    return int(density * size)


@dataclass
class Trimmer:
    """Sets all but the entries of largest magnitude to 0; call it on ranges in order, once each.

    Of entries equal to the smallest kept one, the first are kept. Non-negative float32 numbers have
    the order of their bits as integers. So two counting passes, over the upper and the lower half
    of the bits, find the k-th magnitude with a table of 65,536 counts, without sorting.
    """

    threshold: int  # magnitude of the smallest kept entry, as its bits
    ties: int  # number of kept entries of that magnitude

    @classmethod
    def of(cls, ranges: Callable[[], Iterable[Float[Tensor, "..."]]], kept: int) -> "Trimmer":
        """Return a trimmer, in two iterations over the ranges; ValueError if one is not finite."""
        if kept == 0:
            return cls(threshold=2**31 - 1, ties=0)
        upper, above = _bucket((_bits(part) >> HALF for part in ranges()), kept)
        inside = (bits[bits >> HALF == upper] & (2**HALF - 1) for bits in map(_bits, ranges()))
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
    """Return magnitudes as integers of the same order."""
    magnitudes = values.detach().flatten().abs().float()
    if not magnitudes.isfinite().all():
        raise ValueError("a task vector has values that are not finite; its model is damaged")
    return magnitudes.view(torch.int32)


def _bucket(keys: Iterable[Int[Tensor, "N"]], kept: int) -> tuple[int, int]:
    """Return the key of the ``kept``-th largest entry, and the number of larger keys."""
    counts = torch.zeros(2**HALF, dtype=torch.int64)
    for part in keys:
        counts += torch.bincount(part, minlength=2**HALF)
    from_top = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, kept))
    above = int(from_top[place - 1]) if place else 0
    return 2**HALF - 1 - place, above


def trim(vector: Float[Tensor, "*shape"], density: float) -> Float[Tensor, "*shape"]:
    """Return a vector whose entries are 0 except for a share of the largest magnitudes."""
    kept = kept_count(vector.numel(), density)
    return Trimmer.of(lambda: [vector], kept)(vector.flatten()).view_as(vector)


def elect_signs(
    vectors: Sequence[Float[Tensor, "*shape"]], election: str = "total"
) -> Float[Tensor, "*shape"]:
    """Return the elected sign of every weight, 1 or −1; ties give 1.

    The election sums the vectors (``"total"``), or their signs (``"frequency"``).
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
    r"""Return the base plus the mean of the task vectors that have the elected sign (TIES).

    .. math::

        \theta' = \theta_0 + \frac{s}{|A|} \sum_{i \in A} \lambda_i \tau_i, \qquad
        A = \{i : \mathrm{sign}(\tau_i) = \gamma\}

    The weights λ do not affect the sign γ. Vectors must be trimmed; s is the ``scale``.

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
