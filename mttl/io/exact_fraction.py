"""Shares as they are written: 1.1 times 50 is 55, and not a little more."""

from fractions import Fraction


def exact_fraction(share: float, n: int) -> Fraction:
    """Return a share of a number exactly, for rounding.

    A float is taken for the shortest decimal that stands for it, which is what somebody wrote:
    binary floats lie a little beside most decimals, and rounding up or down makes that a whole one.

    Args:
        share: A finite number.
        n: What it is a share of.
    """
    return Fraction(str(share)) * n
