"""Numbers in figures: grouped, with decimals, as percentages, as money; in a language's digits."""

from collections.abc import Iterator

from babel import Locale
from babel.numbers import format_currency, format_decimal, format_percent
from derived_gym.blanks import plain
from derived_gym.draws import shares
from derived_gym.item import Item

from grid_gym.things import long_decimals, number_key, prices, whole_numbers

# Zero of the native digits of CLDR; the other languages have European ones.
_ZERO = {"fa": "\u06f0", "hi": "\u0966", "th": "\u0e50"}


def group(language: str) -> Iterator[Item]:
    """Yield 1234567 -> 1.234.567."""
    for value in whole_numbers():
        text = format_decimal(value, locale=language, numbering_system=_system(language))
        yield Item(str(value), (_own_digits(plain(text), language),), (number_key(value),))


def decimal(language: str) -> Iterator[Item]:
    """Yield 1234.5 -> 1.234,5."""
    for value in long_decimals():
        text = format_decimal(value, locale=language, numbering_system=_system(language))
        yield Item(str(value), (_own_digits(plain(text), language),), (number_key(value),))


def percent(language: str) -> Iterator[Item]:
    """Yield 0.125 -> 12,5 %."""
    # babel writes the European sign with Persian digits too.
    sign = Locale(language).number_symbols[_system(language)].get("percentSign", "%")
    for value in shares():
        text = format_percent(
            value,
            locale=language,
            decimal_quantization=False,
            numbering_system=_system(language),
        )
        text = _own_digits(plain(text).replace("%", sign), language)
        yield Item(f"{value:f}", (text,), (number_key(value),))


def money(language: str) -> Iterator[Item]:
    """Yield 1234.5 EUR -> 1.234,50 €."""
    for price in prices():
        text = format_currency(price.value, price.unit, locale=language)
        yield Item(str(price), (plain(text),), (number_key(price.value),))


def _own_digits(text: str, language: str) -> str:
    """Write European digits as those of the language: babel knows the marks between them only."""
    zero = _ZERO.get(language, "0")
    return text.translate({ord(str(n)): chr(ord(zero) + n) for n in range(10)})


def _system(language: str) -> str:
    return Locale(language).other_numbering_systems["native"]
