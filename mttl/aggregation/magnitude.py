"""The k entries of largest magnitude, of tensors too large to sort or even to hold.

A float32 that is not negative has the same order as its bits read as a whole number. So two passes
of counting, over the upper and then over the lower half of the bits, find the k-th magnitude
exactly; what is needed of memory is a table of 65,536 counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mttl.config.enums import check_density

HALF = 16


def kept_count(size: int, density: float) -> int:
    """Return how many of ``size`` entries a density in (0, 1] keeps, rounded down."""
    check_density(density)
    return int(density * size)


@dataclass
class Trimmer:
    """Sets to 0 all but the entries of largest magnitude; give it the ranges in order, once.

    Among entries equal to the smallest one kept, the first are kept.

    Attributes:
        threshold: The magnitude of the smallest entry to keep, as its bits.
        ties: How many entries of just that magnitude to keep.
    """

    threshold: int
    ties: int

    @classmethod
    def of(cls, ranges: Iterable[Float[Tensor, "..."]], kept: int) -> "Trimmer":
        """Find the threshold for so many kept entries; ranges are iterated over twice.

        Raises:
            ValueError: If an entry is not finite.
        """
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
