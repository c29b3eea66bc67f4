"""Numbers as people write them: grouped, as money, as percentages, in words."""

from collections.abc import Callable, Iterator
from decimal import Decimal

from babel.numbers import format_currency, format_decimal, format_percent
from derived_gym.blanks import plain
from derived_gym.draws import amount, digits, numbers, shares
from derived_gym.item import Item
from inflect import engine

from lexical_gym.words import Lexicon


def grouped(locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 1234567 -> 1,234,567 in the manner of ``locale``."""

    def items(_: Lexicon) -> Iterator[Item]:
        for value in numbers("grouped", lambda rng: Decimal(digits(rng, 4, 7))):
            yield _item(value, str(value), format_decimal(value, locale=locale))

    return items


def money(currency: str, locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 1234.5 -> $1,234.50 in a currency, in the manner of ``locale``."""

    def items(_: Lexicon) -> Iterator[Item]:
        for value in numbers("money", amount):
            shown = format_currency(value, currency, locale=locale)
            yield _item(value, str(value), shown)

    return items


def percent(locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 0.125 -> 12.5% in the manner of ``locale``."""

    def items(_: Lexicon) -> Iterator[Item]:
        for value in shares():
            shown = format_percent(value, locale=locale, decimal_quantization=False)
            yield _item(value, f"{value:f}", shown)

    return items


def ordinal(_: Lexicon) -> Iterator[Item]:
    """Yield 21 -> 21st."""
    english = engine()
    for value in numbers("ordinal", lambda rng: Decimal(digits(rng, 1, 5))):
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
    return Item(given, (plain(wanted),), (f"number:{value.normalize():f}",))
