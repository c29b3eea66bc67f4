"""Dates and months as people write them, and back."""

import datetime
from collections.abc import Iterator

from babel.dates import format_date, format_skeleton
from derived_gym.blanks import plain
from derived_gym.draws import days
from derived_gym.item import Item


def date_short(language: str) -> Iterator[Item]:
    """Yield 2021-03-05 -> 05.03.21."""
    return _written(language, "short")


def date_long(language: str) -> Iterator[Item]:
    """Yield 2021-03-05 -> 5. März 2021."""
    return _written(language, "long")


def date_iso(language: str) -> Iterator[Item]:
    """Yield 5. März 2021 -> 2021-03-05."""
    for item in date_long(language):
        yield Item(item.outputs[0], (item.input,), item.keys)


def month(language: str) -> Iterator[Item]:
    """Yield 2021-03 -> März 2021."""
    for year in range(1950, 2050):
        for number in range(1, 13):
            day = datetime.date(year, number, 1)
            text = plain(format_skeleton("yMMMM", day, locale=language))
            yield Item(f"{day:%Y-%m}", (text,), (f"month:{day:%Y-%m}",))


def _written(language: str, style: str) -> Iterator[Item]:
    for day in days():
        text = format_date(day, style, locale=language)  # pyright: ignore[reportArgumentType]
        yield Item(str(day), (plain(text),), (f"date:{day}",))
