"""Validated records of JSON and YAML files, with uniform error messages."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from mttl.io.errors import CheckpointError, MttlError, nearest
from mttl.io.files import write_text
from mttl.io.reading import parse_json, printable, read_text, reason, shown
from mttl.io.yaml12 import read_yaml

# Configuration of records, and of pydantic dataclasses used as records.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text (quote it if it looks like a number or a boolean)",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of settings"),
    **dict.fromkeys(("mapping_type", "dataclass_type"), "a mapping of settings"),
}

# A name for tables and file names.
Printable = Annotated[str, AfterValidator(printable)]
MOST_MISTAKES = 5  # per file and message
Kind = TypeVar("Kind")


class Record(BaseModel):
    """Content of a file, or a part of it: immutable, without unknown fields or NaN."""

    model_config = STRICT | ConfigDict(frozen=True)
    error: ClassVar[type[MttlError]] = CheckpointError  # class of errors
    advice: ClassVar[str] = "Copy it again"  # how to fix a damaged file

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the record in a JSON file or, by its ending, YAML; raises ``error``."""
        if Path(path).suffix in (".yaml", ".yml"):
            return check(cls, read_yaml(path, cls.error), f"'{path}'", cls.error, cls.advice)
        return cls.parse(read_text(path, cls.error), f"'{path}'")

    @classmethod
    def parse(cls, text: str | bytes, place: str) -> Self:
        """Return the record in JSON text; ``place`` is the origin of the text."""
        return check(cls, parse_json(text, place, cls.error), place, cls.error, cls.advice)

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(as_row(self), indent=2, ensure_ascii=False) + "\n"

    def write(self, path: str | Path) -> None:
        """Write a JSON file atomically."""
        write_text(path, self.text())


def as_row(value: Any) -> dict[str, Any]:
    """Return the fields of a record or a pydantic dataclass, as for JSON."""
    return _adapter(type(value)).dump_python(value, mode="json")


def check(
    kind: type[Kind], value: Any, place: str, error: type[MttlError], advice: str = ""
) -> Kind:
    """Return JSON or YAML data as a record or a pydantic dataclass.

    The error has the place, for every mistake the field, its value and what is allowed, and finally
    the advice.
    """
    try:
        return _adapter(kind).validate_json(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as cause:
        found = reason(cause)
        if isinstance(cause, ValidationError):
            mistakes = cause.errors(include_url=False)
            lines = "; ".join(_line(kind, mistake) for mistake in mistakes[:MOST_MISTAKES])
            found = lines + (f"{'' if lines.endswith('?') else '.'} {advice}" if advice else "")
        raise error(f"{place}: {found}") from cause


@lru_cache
def _adapter(kind: type[Kind]) -> TypeAdapter[Kind]:
    return TypeAdapter(kind)


def _line(kind: type, mistake: Mapping[str, Any]) -> str:
    *parents, name = mistake["loc"] or ("",)
    field = ".".join(str(part) for part in (*parents, name) if part != "[key]")
    if mistake["type"] in UNKNOWN:
        known = list(_fields(kind, parents))
        hint = nearest(str(name), known) or (f" Keys: {', '.join(known)}" if known else "")
        return f"unknown key '{field}'.{hint}"
    if mistake["type"] == "missing":
        return f"the key '{field}' is missing"
    if mistake["type"] == "value_error":
        scalar = field and not isinstance(mistake["input"], Mapping | list)
        found = f" {shown(mistake['input'])}" if scalar else ""
        return f"{field}:{found} {mistake['ctx']['error']}".removeprefix(": ")
    return f"{field or 'it'}: {shown(mistake['input'])} {requirement(mistake)}"


def _fields(kind: Any, path: Sequence[int | str]) -> Mapping[str, Any]:
    """Return the fields of a part of a record; empty for a mapping with free keys."""
    for part in path:
        fields = getattr(kind, "__pydantic_fields__", {})
        inside = [fields[part].annotation] if part in fields else []
        while inside and not hasattr(inside[0], "__pydantic_fields__"):
            inside = [*get_args(inside[0]), *inside[1:]]
        kind = inside[0] if inside else kind if isinstance(part, int) else None
    return getattr(kind, "__pydantic_fields__", {})


def requirement(mistake: Mapping[str, Any]) -> str:
    """Return pydantic's requirement as ``"must be …"``, with the nearest allowed value."""
    if mistake["type"] == "literal_error":
        expected = mistake["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        near = nearest(str(mistake["input"]), expected.split(", "))
        return f"must be {'one of ' * (',' in expected)}{expected}{'.' * bool(near)}{near}"
    if mistake["type"] in TYPES:
        return f"must be {TYPES[mistake['type']]}"
    text = re.sub(r"^(Input|Value|String|List|Dictionary|Tuple) should", "must", mistake["msg"])
    return f"{text[0].lower()}{text[1:]}"
