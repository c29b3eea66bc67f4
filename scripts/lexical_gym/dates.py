"""Dates and times as people write them, from and to their ISO forms."""

import datetime
import random
from collections.abc import Callable, Iterator

from babel.dates import format_date, format_time

from lexical_gym.item import Item
from lexical_gym.words import Lexicon

_DRAWS = 5000
_FIRST_DAY = datetime.date(1950, 1, 1)
_DAYS = 100 * 365


def written_date(style: str, locale: str) -> Callable[[Lexicon], Iterator[Item]]:
    """Make the task 2021-03-05 -> Mar 5, 2021 in a style and locale of CLDR."""

    def items(_: Lexicon) -> Iterator[Item]:
        for day in _days():
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


def _days() -> list[datetime.date]:
    rng = random.Random("dates")
    days = (_FIRST_DAY + datetime.timedelta(days=rng.randrange(_DAYS)) for _ in range(_DRAWS))
    return sorted(set(days))


def _times() -> list[datetime.time]:
    return [datetime.time(hour, minute) for hour in range(24) for minute in range(60)]


def _hours_12(time: datetime.time) -> str:
    return format_time(time, "short", locale="en_US")


def _hours_24(time: datetime.time) -> str:
    return f"{time:%H:%M}"


def _item(kind: str, key: str, given: str, wanted: str) -> Item:
    # CLDR's blanks do not break lines; an ordinary one is the same to a reader.
    texts = (text.replace("\u00a0", " ").replace("\u202f", " ") for text in (given, wanted))
    source, target = texts
    return Item(source, (target,), (f"{kind}:{key}",))
