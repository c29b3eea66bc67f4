"""Templates over a record: ``question: {question|lf} context: {context}``.

``{field|filter|...}`` is the field after its filters, left to right; ``{a.b}`` is field b of
a, for each item where a is a list; ``{[a,b]}`` is the list of those fields; all else stands as it
is. A template is parsed once, into functions that fill it for many records at a time: a column of
a thousand fields is read, checked and joined faster than a thousand records one by one.
"""

import re
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from mttl.io.errors import TaskError
from mttl.tasks.template_field import Column, Read, Record, as_text, compile_field, texts, written

_PARTS = re.compile(r"\{([^{}]*)\}")


def compile_template(template: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from records to the texts of the template.

    Raises:
        TaskError: If the template is malformed.
    """
    pieces = _PARTS.split(template)
    literals = pieces[0::2]
    if any("{" in literal or "}" in literal for literal in literals):
        raise TaskError(f"the template '{template}' has a brace without its partner")
    fields = [written(field, compile_field(field, labels, template)) for field in pieces[1::2]]
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


def compile_values(template: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from records to what the one field of a template holds, lists too.

    Of another template the texts, as `compile_template`.
    """
    lone = _PARTS.fullmatch(template)
    return compile_field(lone[1], labels, template) if lone else compile_template(template, labels)


def compile_condition(condition: str, labels: Sequence[str] = ()) -> Read:
    """Return a function from records to truth values, of ``{field} is [not] value or value``.

    Values are compared as text; ``empty`` is the text of no character, and a truth value reads
    ``true`` or ``false``.

    Raises:
        TaskError: If the condition is malformed.
    """
    match = re.fullmatch(r"(\{[^{}]*\}) is (not )?(.+)", condition)
    if match is None:
        raise TaskError(
            f"the condition '{condition}' must read '{{field}} is value', with 'not' before the "
            "value and 'or value' after it as needed"
        )
    read = compile_values(match[1], labels)
    values = {"" if value == "empty" else value for value in match[3].split(" or ")}
    wanted = match[2] is None
    return lambda records: [(text in values) is wanted for text in _comparable(read(records))]


def _comparable(column: Column) -> list[str]:
    if {bool, type(None)}.isdisjoint(map(type, column)):
        return texts(column)
    return list(map(_comparable_value, column))


def _comparable_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else as_text(value)
