"""Numbers as people write them: grouped, as money, as percentages, in words."""

import random
from collections.abc import Callable, Iterator
from decimal import Decimal

from babel.numbers import format_currency, format_decimal, format_percent
from inflect import engine

from lexical_gym.item import Item
from lexical_gym.words import Lexicon

_DRAWS = 6000


def grouped(locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 1234567 -> 1,234,567 in the manner of ``locale``."""

    def items(_: Lexicon) -> Iterator[Item]:
        for value in _draw("grouped", lambda rng: Decimal(_digits(rng, 4, 7))):
            yield _item(value, str(value), format_decimal(value, locale=locale))

    return items


def money(currency: str, locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 1234.5 -> $1,234.50 in a currency, in the manner of ``locale``."""

    def items(_: Lexicon) -> Iterator[Item]:
        for value in _draw("money", _amount):
            shown = format_currency(value, currency, locale=locale)
            yield _item(value, str(value), shown)

    return items


def percent(locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 0.125 -> 12.5% in the manner of ``locale``."""

    def items(_: Lexicon) -> Iterator[Item]:
        for thousandths in range(1, 3000):
            value = (Decimal(thousandths) / 1000).normalize()
            shown = format_percent(value, locale=locale, decimal_quantization=False)
            yield _item(value, f"{value:f}", shown)

    return items


def ordinal(_: Lexicon) -> Iterator[Item]:
    """Yield 21 -> 21st."""
    english = engine()
    for value in _draw("ordinal", lambda rng: Decimal(_digits(rng, 1, 5))):
        yield _item(value, str(value), str(english.ordinal(str(value))))


def number_words(_: Lexicon) -> Iterator[Item]:
    """Yield 345 -> three hundred forty-five, up to 999."""
    return (_item(value, str(value), words) for value, words in _in_words())


def words_number(_: Lexicon) -> Iterator[Item]:
    """Yield three hundred forty-five -> 345, up to 999."""
    return (_item(value, words, str(value)) for value, words in _in_words())


def ordinal_words(_: Lexicon) -> Iterator[Item]:
    """Yield 345 -> three hundred forty-fifth, up to 999."""
    english = engine()
    for value, words in _in_words():
        yield _item(value, str(value), str(english.ordinal(words)))


def _in_words() -> Iterator[tuple[Decimal, str]]:
    english = engine()
    for value in range(1, 1000):
        yield Decimal(value), str(english.number_to_words(str(value), andword=""))


def _item(value: Decimal, given: str, wanted: str) -> Item:
    # CLDR's blanks do not break lines; an ordinary one is the same to a reader.
    plain = wanted.replace("\u00a0", " ").replace("\u202f", " ")
    return Item(given, (plain,), (f"number:{value.normalize():f}",))


def _draw(name: str, one: Callable[[random.Random], Decimal]) -> list[Decimal]:
    rng = random.Random(f"numbers/{name}")
    return sorted({one(rng) for _ in range(_DRAWS)})


def _digits(rng: random.Random, shortest: int, longest: int) -> str:
    n = rng.randint(shortest, longest)
    return str(rng.randrange(10 ** (n - 1), 10**n))


def _amount(rng: random.Random) -> Decimal:
    whole, decimals = _digits(rng, 1, 5), rng.choice((0, 1, 2))
    cents = str(rng.randrange(10**decimals)).zfill(decimals) if decimals else "0"
    # Without trailing zeros, and written out: 1200, not 1.2E+3.
    return Decimal(f"{Decimal(f'{whole}.{cents}').normalize():f}")
