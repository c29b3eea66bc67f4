"""The table of languages and the table of operations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from derived_gym.item import Item

from grid_gym import dates, figures, numerals, phrases

# The first language of two that write the same keeps the task.
LANGUAGES = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "pl": "Polish",
    "tr": "Turkish",
    "ru": "Russian",
    "el": "Greek",
    "fa": "Persian",
    "he": "Hebrew",
    "hi": "Hindi",
    "th": "Thai",
    "ja": "Japanese",
    "ko": "Korean",
}


@dataclass(frozen=True)
class Operation:
    """What is done, in any language.

    Attributes:
        name: The second part of a task's name.
        family: Of the category.
        source: The package that knows how it is done.
        description: What to do; a brace stands for the language.
        items: Yields all examples of a language; a LookupError says why it has none.
    """

    name: str
    family: str
    source: str
    description: str
    items: Callable[[str], Iterable[Item]]


OPERATIONS = (
    Operation(
        "date_short",
        "date",
        "babel",
        "Write the date in its shortest form as in {}.",
        dates.date_short,
    ),
    Operation("date_long", "date", "babel", "Write the date in full as in {}.", dates.date_long),
    Operation(
        "date_iso", "date", "babel", "Turn the date in {} into its ISO form.", dates.date_iso
    ),
    Operation("month", "date", "babel", "Write the month and the year as in {}.", dates.month),
    Operation("group", "figure", "babel", "Group the digits as in {}.", figures.group),
    Operation("decimal", "figure", "babel", "Write the decimal number as in {}.", figures.decimal),
    Operation(
        "percent", "figure", "babel", "Write the share in percent as in {}.", figures.percent
    ),
    Operation("money", "figure", "babel", "Write the amount of money as in {}.", figures.money),
    Operation(
        "compact", "phrase", "babel", "Write the large number in short as in {}.", phrases.compact
    ),
    Operation("unit", "phrase", "babel", "Write number and unit as in {}.", phrases.unit),
    Operation(
        "ago",
        "phrase",
        "babel",
        "Say in {} how long ago it was, or how soon it will be.",
        phrases.ago,
    ),
    Operation("list", "phrase", "babel", "Join the names to a list in {}.", phrases.joined),
    Operation(
        "cardinal", "words", "num2words", "Write the number in words of {}.", numerals.cardinal
    ),
    Operation(
        "ordinal",
        "words",
        "num2words",
        "Write the ordinal number in words of {}.",
        numerals.ordinal,
    ),
    Operation(
        "number",
        "words",
        "num2words",
        "Turn the number in words of {} into digits.",
        numerals.number,
    ),
)
