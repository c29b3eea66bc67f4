"""What the tasks write down: numbers, quantities, delays and names; no language has its own.

Each thing has a key, by which it is in training, development or test, for all languages and
operations.
"""

import random
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from babel import Locale
from derived_gym.draws import amount, digits, numbers
from derived_gym.split import SHARES, split_of

CURRENCIES = ("USD", "EUR", "GBP", "INR", "CHF", "JPY")
UNITS = (
    *("length-kilometer", "length-meter", "length-centimeter", "mass-kilogram", "mass-gram"),
    *("volume-liter", "area-square-meter", "speed-kilometer-per-hour"),
)
DELAYS = ("minute", "hour", "day", "week", "month", "year")
_QUANTITIES = 4000
_LISTS = 3000
_PSEUDO = ("EU", "EZ", "QO", "UN", "XA", "XB", "ZZ")


@dataclass(frozen=True, order=True)
class Quantity:
    """A number of something: of a unit of CLDR, of a currency, or of spans of time from now."""

    value: Decimal
    unit: str

    def __str__(self) -> str:
        return f"{self.value:f} {self.unit}"


def number_key(value: Decimal | int) -> str:
    """Return the key of a number, whatever it counts."""
    return f"number:{Decimal(value).normalize():f}"


@cache
def whole_numbers() -> tuple[Decimal, ...]:
    """Return numbers of four to seven digits, to be grouped."""
    return tuple(numbers("grouped", lambda rng: Decimal(digits(rng, 4, 7))))


@cache
def long_decimals() -> tuple[Decimal, ...]:
    """Return numbers of four or five digits and one to three decimals."""
    return tuple(numbers("decimals", _long_decimal))


@cache
def round_numbers() -> tuple[Decimal, ...]:
    """Return numbers from ten thousand to a trillion, of three digits before their zeros."""
    return tuple(numbers("round", _round_number))


@cache
def prices() -> tuple[Quantity, ...]:
    """Return amounts of money; yen have no cents."""
    drawn = []
    for value in numbers("money", amount):
        currency = random.Random(f"currency/{value}").choice(CURRENCIES)
        if currency != "JPY" or value == value.to_integral_value():
            drawn.append(Quantity(value, currency))
    return tuple(drawn)


@cache
def quantities() -> tuple[Quantity, ...]:
    """Return numbers of units; small ones are frequent, since they decide on the plural."""
    rng = random.Random("quantities")
    drawn = set()
    for _ in range(_QUANTITIES):
        value = Decimal(digits(rng, 1, 3))
        if rng.random() < 0.25:
            value += Decimal(rng.randrange(1, 10)) / 10
        drawn.add(Quantity(value, rng.choice(UNITS)))
    return tuple(sorted(drawn))


@cache
def delays() -> tuple[Quantity, ...]:
    """Return spans of time, the past with a minus."""
    counts = [n for n in range(-99, 100) if n]
    return tuple(Quantity(Decimal(n), unit) for unit in DELAYS for n in counts)


@cache
def name_lists() -> tuple[tuple[str, ...], ...]:
    """Return lists of two to four territories by their codes, all of one split."""
    rng = random.Random("lists")
    codes = [code for code in sorted(Locale("en").territories) if code.isalpha()]
    codes = [code for code in codes if len(code) == 2 and code not in _PSEUDO]
    drawn: dict[tuple[str, ...], None] = {}
    for split, _ in SHARES:
        inside = [code for code in codes if split_of(name_key(code)) == split]
        for _ in range(_LISTS):
            drawn[tuple(rng.sample(inside, rng.randint(2, 4)))] = None
    return tuple(drawn)


def name_key(code: str) -> str:
    """Return the key of a name, whatever the language."""
    return f"name:{code}"


def _long_decimal(rng: random.Random) -> Decimal:
    decimals = str(rng.randrange(10 ** rng.randint(1, 3))).rstrip("0") or "5"
    return Decimal(f"{digits(rng, 4, 5)}.{decimals}")


def _round_number(rng: random.Random) -> Decimal:
    first = int(digits(rng, 1, 3))
    return Decimal(first * 10 ** rng.randint(5 - len(str(first)), 12 - len(str(first))))
