"""Numbers with words around them, and lists of names."""

import datetime
from collections.abc import Iterator

from babel import Locale
from babel.dates import format_timedelta
from babel.lists import format_list
from babel.numbers import format_compact_decimal
from babel.units import format_unit
from derived_gym.blanks import plain
from derived_gym.item import Item

from grid_gym.things import (
    delays,
    name_key,
    name_lists,
    number_key,
    quantities,
    round_numbers,
)

_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_NEVER = 10**9  # of smaller spans of time than are asked for, none is large enough to be another


def compact(language: str) -> Iterator[Item]:
    """Yield 12300000 -> 12,3 Millionen."""
    for value in round_numbers():
        text = _compact(value, language)
        yield Item(f"{value:f}", (plain(text),), (number_key(value),))


def unit(language: str) -> Iterator[Item]:
    """Yield 2.5 kilometer-per-hour -> 2,5 Kilometer pro Stunde.

    Raises:
        LookupError: If babel has no pattern of a unit in the language.
    """
    for quantity in quantities():
        text = format_unit(quantity.value, quantity.unit, locale=language)
        if quantity.unit in text:
            raise LookupError(f"babel has no pattern of {quantity.unit}")
        name = quantity.unit.partition("-")[2]
        key = f"quantity:{quantity.value.normalize():f} {name}"
        yield Item(f"{quantity.value:f} {name}", (plain(text),), (key,))


def ago(language: str) -> Iterator[Item]:
    """Yield -3 day -> il y a 3 jours."""
    for delay in delays():
        count = int(delay.value)
        span = (
            datetime.timedelta(days=count * _DAYS[delay.unit])
            if delay.unit in _DAYS
            else datetime.timedelta(**{f"{delay.unit}s": count})
        )
        text = format_timedelta(
            span,
            granularity=delay.unit,  # pyright: ignore[reportArgumentType]
            threshold=_NEVER,
            add_direction=True,
            locale=language,
        )
        yield Item(str(delay), (plain(text),), (f"delay:{delay}",))


def joined(language: str) -> Iterator[Item]:
    """Yield Frankreich; Italien; Polen -> Frankreich, Italien und Polen."""
    territories = Locale(language).territories
    for codes in name_lists():
        names = [plain(territories.get(code, ";")) for code in codes]
        # A name with a mark of its own would make the list hard to tell.
        if not any(set(",;()،、") & set(name) for name in names):
            text = plain(format_list(names, locale=language))
            yield Item("; ".join(names), (text,), tuple(map(name_key, codes)))


def _compact(value, language: str) -> str:
    # Where the long form is the short one, babel does not find it.
    styles = Locale(language).compact_decimal_formats
    style = "long" if "long" in styles else "short"
    return format_compact_decimal(value, format_type=style, locale=language, fraction_digits=2)
