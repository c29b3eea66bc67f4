"""Exact product of a decimal fraction and an integer: 1.1 times 50 is 55."""

from fractions import Fraction


def exact_fraction(share: float, n: int) -> Fraction:
    """Return the exact product of a finite fraction and a whole number.

    A float counts as the shortest decimal that it prints as, which is what the user wrote.
    """
    return Fraction(str(share)) * n
