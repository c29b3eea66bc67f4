"""Templates over records: ``question: {question|lf} context: {context}``.

``{field|filter|...}`` is the field after its filters, left to right; ``{a.b}`` is field b of a, or
of each item of a list a; ``{[a,b]}`` is the list of these fields; other text is copied. A template
is compiled once into functions that process many records at a time, column by column.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from mttl.io.errors import TaskError, nearest
from mttl.tasks.filters import (
    CHOICE_FILTERS,
    LIST_FILTERS,
    TEXT_FILTERS,
    FieldError,
    RecordError,
    item_at,
    pick,
    shown,
)

Record = Mapping[str, Any]
Column = list[Any]
Read = Callable[[Sequence[Record]], Column]

ARGUMENT_FILTERS = ("at", "at1", "join", "pick")
LABEL_FILTERS = ("name", "name1")
FILTERS = (*TEXT_FILTERS, *LIST_FILTERS, *CHOICE_FILTERS, *LABEL_FILTERS, *ARGUMENT_FILTERS)
_PARTS = re.compile(r"\{([^{}]*)\}")


def compile_template(template: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from records to the texts of the template.

    Raises:
        TaskError: If the template is malformed.
    """
    pieces = _PARTS.split(template)
    literals = pieces[0::2]
    if any("{" in literal or "}" in literal for literal in literals):
        raise TaskError(f"the template '{template}' has an unmatched brace")
    fields = [
        _named(field.partition("|")[0], _written(compile_field(field, labels, template)))
        for field in pieces[1::2]
    ]
    if len(fields) == 1 and literals == ["", ""]:
        return fields[0]

    def fill(records: Sequence[Record]) -> Column:
        columns: list[Any] = [repeat(literals[0], len(records))]
        for field, literal in zip(fields, literals[1:], strict=True):
            columns.append(field(records))
            if literal:
                columns.append(repeat(literal))
        return list(map("".join, zip(*columns, strict=False)))

    return fill


def template_fields(template: str) -> set[str]:
    """Return the top-level fields that a template reads."""
    found: set[str] = set()
    for part in _PARTS.findall(template):
        name, *filters = part.split("|")
        choices = [f.partition(":")[2] for f in filters if f.startswith(("at:", "at1:", "pick:"))]
        names = [*name.strip("[]").split(","), *choices]
        found |= {one.strip().partition(".")[0] for one in names}
    return found


def _written(read: Read) -> Read:
    return lambda records: texts(read(records))


def compile_values(template: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from records to the values of a template with a single field.

    For other templates it returns texts, as `compile_template`.
    """
    lone = _PARTS.fullmatch(template)
    return compile_field(lone[1], labels, template) if lone else compile_template(template, labels)


def compile_condition(condition: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from records to the truth of ``{field} is [not] value or value``.

    Conditions may be joined by ``and``. Values are compared as text; ``empty`` is white space, and
    booleans are ``true`` or ``false``.

    Raises:
        TaskError: If the condition is malformed.
    """
    parts = re.split(r" and (?=\{[^{}]*\} is )", condition)
    if len(parts) > 1:
        each = [compile_condition(part, labels) for part in parts]
        return lambda records: list(map(all, zip(*(one(records) for one in each), strict=True)))
    match = re.fullmatch(r"(\{[^{}]*\}) is (not )?(.+)", condition)
    if match is None:
        raise TaskError(
            f"the condition '{condition}' must have the form '{{field}} is value', optionally "
            "with 'not' before the value and 'or value' after it"
        )
    read = compile_values(match[1], labels)
    values = {"" if value == "empty" else value for value in match[3].split(" or ")}
    wanted = match[2] is None
    return lambda records: [(_comparable(value) in values) is wanted for value in read(records)]


def _comparable(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None else as_text(value)
    return "" if text.isspace() else text


def compile_field(field: str, labels: Sequence[str], template: str) -> Read:
    """Return a function from records to the values of a field.

    Raises:
        TaskError: If the field is malformed.
    """
    name, *filters = field.split("|")
    if not name.strip(" []"):
        raise TaskError(f"the template '{template}' has a field without a name: '{{{field}}}'")
    read = _field(name)
    for filter_ in filters:
        read = _named(name, _filter(filter_, read, labels, template))
    return read


def texts(column: Column) -> list[str]:
    """Return a column of texts and numbers as texts.

    Raises:
        RecordError: If a value is neither text nor number.
    """
    kinds = set(map(type, column))
    if kinds <= {str}:
        return column
    return list(map(str if kinds <= {str, int} else as_text, column))


def as_text(value: Any) -> str:
    """Return a text or a number as text.

    Raises:
        RecordError: If it is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    remedy = "; for lists use 'references: all' in the output, or a filter such as 'join'"
    if not isinstance(value, list):
        remedy = ""
    raise RecordError(f"is {shown(value)}; it must be a text or a number{remedy}")


def _field(field: str) -> Read:
    if field.startswith("[") and field.endswith("]"):
        fields = [_field(name.strip()) for name in field[1:-1].split(",")]
        return lambda records: [
            list(items) for items in zip(*(read(records) for read in fields), strict=True)
        ]
    first, *path = field.split(".")

    def read(records: Sequence[Record]) -> Column:
        if path and isinstance(records[0], Mapping) and field in records[0]:
            keys = [field]  # a column whose name has a dot
        else:
            keys = [first, *path]
        try:
            column = [record[keys[0]] for record in records]
            for key in keys[1:]:
                column = [_follow(value, key) for value in column]
        except (KeyError, TypeError) as error:
            what = f"the record is {shown(records[0])}; it must be a mapping of fields"
            if isinstance(records[0], Mapping):
                there = ", ".join(map(str, records[0]))
                what = f"the field '{field}' is missing; the record has {there}"
            raise FieldError(what) from error
        return column

    return _named(field, read)


def _follow(value: Any, key: str) -> Any:
    return [_follow(item, key) for item in value] if isinstance(value, list) else value[key]


def _named(field: str, read: Read) -> Read:
    """Add the field's name to errors."""

    def named(records: Sequence[Record]) -> Column:
        try:
            return read(records)
        except FieldError:
            raise
        except RecordError as error:
            raise FieldError(f"the field '{field}' {error}") from error

    return named


def _filter(filter_: str, read: Read, labels: Sequence[str], template: str) -> Read:
    """Return a column function with one more filter."""
    name, colon, argument = filter_.partition(":")
    problem = ""
    if name not in FILTERS:
        problem = (
            f" has an unknown filter '{name}'.{nearest(name, FILTERS)} Filters: "
            f"{', '.join(sorted(FILTERS))}"
        )
    elif (name in ("at", "at1", "pick")) is not bool(argument) and name != "join":
        form = f"{name}:FIELD" if name in ARGUMENT_FILTERS else name
        problem = f": write the filter '{filter_}' as '{form}'"
    elif name in LABEL_FILTERS and not labels:
        problem = f" uses the filter '{name}', but the task has no labels"
    if problem:
        raise TaskError(f"the template '{template}'{problem}")
    if name in LABEL_FILTERS:
        return _names(read, labels, start=int(name == "name1"))
    if name in ("at", "at1", "pick"):
        return _choice(read, name, argument)
    if name == "join":
        separator = argument if colon else " "
        return _mapped(read, lambda items: separator.join(map(as_text, _items(items))))
    if name in LIST_FILTERS:
        function = LIST_FILTERS[name]
        return _mapped(read, lambda items: function(_items(items)))
    if name in CHOICE_FILTERS:
        return _mapped(read, CHOICE_FILTERS[name])
    return _texts_mapped(read, TEXT_FILTERS[name])


def _mapped(read: Read, function: Callable[[Any], Any]) -> Read:
    def mapped(records: Sequence[Record]) -> Column:
        column = read(records)
        try:
            return list(map(function, column))
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"is {shown(column[0])}, which is malformed ({error!r})") from error

    return mapped


def _texts_mapped(read: Read, function: Callable[[str], str]) -> Read:
    def each(value: Any) -> Any:
        return list(map(each, value)) if isinstance(value, list) else function(as_text(value))

    def mapped(records: Sequence[Record]) -> Column:
        column = read(records)
        return list(map(function if set(map(type, column)) <= {str} else each, column))

    return mapped


def _names(read: Read, labels: Sequence[str], start: int) -> Read:
    table: dict[Any, str] = {}
    for index, label in enumerate(labels, start):
        table[index] = table[str(index)] = label

    def named(records: Sequence[Record]) -> Column:
        column = read(records)
        try:
            return [table[value] for value in column]
        except (KeyError, TypeError) as error:
            allowed = ", ".join(f"{n} ({label})" for n, label in list(enumerate(labels, start))[:9])
            more = ", ..." if len(labels) > 9 else ""
            raise RecordError(f"is {shown(column[0])}; it must be {allowed}{more}") from error

    return named


def _choice(read: Read, name: str, argument: str) -> Read:
    read_index = _field(argument)
    start = int(name == "at1")

    def chosen(records: Sequence[Record]) -> Column:
        column, indices = read(records), read_index(records)
        try:
            if name == "pick":
                return list(map(pick, column, indices))
            return [item_at(_items(v), i, start) for v, i in zip(column, indices, strict=True)]
        except RecordError as error:
            raise FieldError(f"the field '{argument}' {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"is {shown(column[0])}, which is malformed ({error!r})") from error

    return chosen


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise RecordError(f"is {shown(value)}; it must be a list")
