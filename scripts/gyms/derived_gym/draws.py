"""The numbers and dates that gyms are made of: the same draws in every language."""

import datetime
import random
from collections.abc import Callable
from decimal import Decimal

_NUMBERS = 6000
_DATES = 5000
_FIRST_DAY = datetime.date(1950, 1, 1)
_DAYS = 100 * 365


def days() -> list[datetime.date]:
    """Return days of a hundred years."""
    rng = random.Random("dates")
    drawn = (_FIRST_DAY + datetime.timedelta(days=rng.randrange(_DAYS)) for _ in range(_DATES))
    return sorted(set(drawn))


def numbers(name: str, one: Callable[[random.Random], Decimal]) -> list[Decimal]:
    """Return numbers that ``one`` draws; ``name`` is the seed."""
    rng = random.Random(f"numbers/{name}")
    return sorted({one(rng) for _ in range(_NUMBERS)})


def digits(rng: random.Random, shortest: int, longest: int) -> str:
    """Draw the digits of a whole number; all lengths are equally likely."""
    n = rng.randint(shortest, longest)
    return str(rng.randrange(10 ** (n - 1), 10**n))


def amount(rng: random.Random) -> Decimal:
    """Draw an amount of money, with or without cents."""
    whole, decimals = digits(rng, 1, 5), rng.choice((0, 1, 2))
    cents = str(rng.randrange(10**decimals)).zfill(decimals) if decimals else "0"
    # Without trailing zeros, and written out: 1200, not 1.2E+3.
    return Decimal(f"{Decimal(f'{whole}.{cents}').normalize():f}")


def shares() -> list[Decimal]:
    """Return every thousandth below 3, without trailing zeros."""
    return [(Decimal(thousandths) / 1000).normalize() for thousandths in range(1, 3000)]
