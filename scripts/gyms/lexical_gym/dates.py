"""Dates and times as people write them, from and to their ISO forms."""

import datetime
from collections.abc import Callable, Iterator

from babel.dates import format_date, format_time
from derived_gym.blanks import plain
from derived_gym.draws import days
from derived_gym.item import Item

from lexical_gym.words import Lexicon


def written_date(style: str, locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 2021-03-05 -> Mar 5, 2021 in a style and locale of CLDR."""

    def items(_: Lexicon) -> Iterator[Item]:
        for day in days():
            yield _item("date", str(day), str(day), format_date(day, style, locale=locale))  # pyright: ignore[reportArgumentType]

    return items


def iso_date(style: str, locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task Mar 5, 2021 -> 2021-03-05 from a style and locale of CLDR."""

    def items(lexicon: Lexicon) -> Iterator[Item]:
        for item in written_date(style, locale)(lexicon):
            yield Item(item.outputs[0], (item.input,), item.keys)

    return items


def clock_12(_: Lexicon) -> Iterator[Item]:
    """Yield 14:05 -> 2:05 PM."""
    for time in _times():
        yield _item("time", _hours_24(time), _hours_24(time), _hours_12(time))


def clock_24(_: Lexicon) -> Iterator[Item]:
    """Yield 2:05 PM -> 14:05."""
    for time in _times():
        yield _item("time", _hours_24(time), _hours_12(time), _hours_24(time))


def _times() -> list[datetime.time]:
    return [datetime.time(hour, minute) for hour in range(24) for minute in range(60)]


def _hours_12(time: datetime.time) -> str:
    return format_time(time, "short", locale="en_US")


def _hours_24(time: datetime.time) -> str:
    return f"{time:%H:%M}"


def _item(kind: str, key: str, given: str, wanted: str) -> Item:
    return Item(plain(given), (plain(wanted),), (f"{kind}:{key}",))
