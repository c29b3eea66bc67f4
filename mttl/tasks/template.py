"""Templates over records: ``question: {question|lf} context: {context}``.

``{field|filter|...}`` is the field after its filters, left to right; ``{a.b}`` is field b of a, or
of each item of a list a; ``{[a,b]}`` is the list of these fields; other text is copied. A template
is compiled once into a function of a record.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
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
Read = Callable[[Record], Any]

ARGUMENT_FILTERS = ("at", "at1", "join", "pick")
LABEL_FILTERS = ("name", "name1")
FILTERS = (*TEXT_FILTERS, *LIST_FILTERS, *CHOICE_FILTERS, *LABEL_FILTERS, *ARGUMENT_FILTERS)
_PARTS = re.compile(r"\{([^{}]*)\}")


def compile_template(template: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from a record to the text of the template.

    Raises a `TaskError` if the template is malformed.
    """
    pieces = _PARTS.split(template)
    literals = pieces[0::2]
    if any("{" in literal or "}" in literal for literal in literals):
        raise TaskError(f"the template '{template}' has an unmatched brace")
    fields = [
        _named(field.partition("|")[0], compile_field(field, labels, template), as_text)
        for field in pieces[1::2]
    ]
    form = "%s".join(literal.replace("%", "%%") for literal in literals)
    return lambda record: form % tuple([read(record) for read in fields])


def template_fields(template: str) -> set[str]:
    """Return the top-level fields that a template reads."""
    found: set[str] = set()
    for part in _PARTS.findall(template):
        name, *filters = part.split("|")
        choices = [f.partition(":")[2] for f in filters if f.startswith(("at:", "at1:", "pick:"))]
        names = [*name.strip("[]").split(","), *choices]
        found |= {one.strip().partition(".")[0] for one in names}
    return found


def compile_values(template: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from a record to the value of a template with a single field.

    For other templates it returns a text, as `compile_template`.
    """
    lone = _PARTS.fullmatch(template)
    return compile_field(lone[1], labels, template) if lone else compile_template(template, labels)


def compile_condition(condition: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from a record to the truth of ``{field} is [not] value or value``.

    Conditions may be joined by ``and``. Values are compared as text; ``empty`` is white space, and
    booleans are ``true`` or ``false``. Raises a `TaskError` if the condition is malformed.
    """
    parts = re.split(r" and (?=\{[^{}]*\} is )", condition)
    if len(parts) > 1:
        each = [compile_condition(part, labels) for part in parts]
        return lambda record: all([one(record) for one in each])
    match = re.fullmatch(r"(\{[^{}]*\}) is (not )?(.+)", condition)
    if match is None:
        raise TaskError(
            f"the condition '{condition}' must have the form '{{field}} is value', optionally "
            "with 'not' before the value and 'or value' after it"
        )
    read = compile_values(match[1], labels)
    values = {"" if value == "empty" else value for value in match[3].split(" or ")}
    wanted = match[2] is None
    return lambda record: (_comparable(read(record)) in values) is wanted


def _comparable(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None else as_text(value)
    return "" if text.isspace() else text


def compile_field(field: str, labels: Sequence[str], template: str) -> Read:
    """Return a function from a record to the value of a field.

    Raises a `TaskError` if the field is malformed.
    """
    name, *filters = field.split("|")
    if not name.strip(" []"):
        raise TaskError(f"the template '{template}' has a field without a name: '{{{field}}}'")
    read = _field(name)
    for filter_ in filters:
        read = _filtered(filter_, name, read, labels, template)
    return read


def as_text(value: Any) -> str:
    """Return a text or a number as text; raises a `RecordError` if it is neither."""
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
        return lambda record: [read(record) for read in fields]
    keys = field.split(".")

    def read(record: Record) -> Any:
        is_mapping = isinstance(record, Mapping)
        try:
            # The name of a column may have a dot.
            return reduce(_follow, [field] if is_mapping and field in record else keys, record)
        except (KeyError, TypeError) as error:
            what = f"the record is {shown(record)}; it must be a mapping of fields"
            if is_mapping:
                there = ", ".join(map(str, record))
                what = f"the field '{field}' is missing; the record has {there}"
                what = f"{what}.{hint}" if (hint := nearest(field, record)) else what
            raise FieldError(what) from error

    return read


def _follow(value: Any, key: str) -> Any:
    return [_follow(item, key) for item in value] if isinstance(value, list) else value[key]


def _named(field: str, read: Read, function: Callable[[Any], Any]) -> Read:
    return lambda record: _applied(field, read(record), function)


def _applied(field: str, value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the value of a field, which errors name."""
    try:
        return function(value)
    except FieldError:
        raise
    except RecordError as error:
        raise FieldError(f"the field '{field}' {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        what = f"is {shown(value)}, which is malformed ({error!r})"
        raise FieldError(f"the field '{field}' {what}") from error


def _filtered(filter_: str, field: str, read: Read, labels: Sequence[str], template: str) -> Read:
    """Return the function of a field with one more filter."""
    name, colon, argument = filter_.partition(":")
    place = f"the template '{template}'"
    if name not in FILTERS:
        known = f"{nearest(name, FILTERS)} Filters: {', '.join(sorted(FILTERS))}"
        raise TaskError(f"{place} has an unknown filter '{name}'.{known}")
    if (name in ("at", "at1", "pick")) is not bool(argument) and name != "join":
        form = f"{name}:FIELD" if name in ARGUMENT_FILTERS else name
        raise TaskError(f"{place}: write the filter '{filter_}' as '{form}'")
    if name in LABEL_FILTERS and not labels:
        raise TaskError(f"{place} uses the filter '{name}', but the task has no labels")
    if name in ("at", "at1", "pick"):
        return _chosen(name, field, read, argument)
    if name in LABEL_FILTERS:
        function = _label_names(labels, start=int(name == "name1"))
    elif name == "join":
        separator = argument if colon else " "
        function = lambda items: separator.join(map(as_text, _items(items)))  # noqa: E731
    elif name in LIST_FILTERS:
        function = lambda items: LIST_FILTERS[name](_items(items))  # noqa: E731
    else:
        function = CHOICE_FILTERS.get(name) or _of_texts(TEXT_FILTERS[name])
    return _named(field, read, function)


def _of_texts(function: Callable[[str], str]) -> Callable[[Any], Any]:
    def each(value: Any) -> Any:
        return list(map(each, value)) if isinstance(value, list) else function(as_text(value))

    return each


def _label_names(labels: Sequence[str], start: int) -> Callable[[Any], str]:
    table: dict[Any, str] = {}
    for index, label in enumerate(labels, start):
        table[index] = table[str(index)] = label

    def named(value: Any) -> str:
        try:
            return table[value]
        except (KeyError, TypeError) as error:
            allowed = ", ".join(f"{n} ({label})" for n, label in list(enumerate(labels, start))[:9])
            more = ", ..." if len(labels) > 9 else ""
            raise RecordError(f"is {shown(value)}; it must be {allowed}{more}") from error

    return named


def _chosen(name: str, field: str, read: Read, argument: str) -> Read:
    """Return a function from a record to the item of a field at an index or label."""
    read_index, start = _field(argument), int(name == "at1")

    def chosen(record: Record) -> Any:
        value, index = read(record), read_index(record)

        def select(value: Any) -> Any:
            items = value if name == "pick" else _items(value)
            try:
                return pick(items, index) if name == "pick" else item_at(items, index, start)
            except RecordError as error:
                raise FieldError(f"the field '{argument}' {error}") from error

        return _applied(field, value, select)

    return chosen


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise RecordError(f"is {shown(value)}; it must be a list")
