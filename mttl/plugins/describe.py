"""Describe parts by their classes; descriptions of built-in ones are in a generated file.

``python -m mttl.plugins.describe`` writes ``signatures.json``, with which configurations are
validated without importing PyTorch. `mttl.plugins.parts` explains how to write a part.
"""

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Len, Lt, MaxLen, MinLen

from mttl.plugins.classes import FAMILIES, arguments
from mttl.plugins.part_settings import OneOf, ReadFrom
from mttl.plugins.parts import PARTS

SIGNATURES = Path(__file__).with_name("signatures.json")
NOTES = ("lacks", "asks", "refuses", "section_defaults")


def describe(cls: type[Any], given: Sequence[str] = ()) -> dict[str, Any]:
    """Return the description of a class for configurations.

    It has a ``name``, a ``sentence``, ``settings`` by name with ``type``, ``sentence`` and
    optionally ``default``, and the `NOTES`. Arguments ``given`` by the program are omitted. Raises
    a `TypeError` or `NameError` if the type of an argument cannot be resolved.
    """
    left_out = {*given, *(name for kind in cls.__mro__ for name in vars(kind).get("internal", ()))}
    settings: dict[str, dict[str, Any]] = {}
    for kind, item in arguments(cls):
        if item.name not in left_out and item.name not in settings:
            settings[item.name] = _setting(kind, item)
    paragraph = (inspect.cleandoc(cls.__doc__ or "").split("\n\n") or [""])[0]
    words = " ".join(paragraph.replace("``", "`").split())
    sentence = re.split(r"[:,]? :(?:math|sub):", words)[0].rstrip(".")
    notes = {name: notes_of(cls, name) for name in NOTES}
    for name in notes["section_defaults"].keys() & {*settings, *left_out}:
        default = notes["section_defaults"].pop(name)
        if name in settings:
            settings[name]["default"] = default
    head = {"name": cls.__name__, "sentence": f"{sentence}.", "settings": settings}
    return head | {name: note for name, note in notes.items() if note}


def notes_of(cls: type[Any], name: str) -> dict[str, Any]:
    """Return the entries of a table such as ``lacks``, of a class and its bases."""
    return {k: v for kind in reversed(cls.__mro__) for k, v in vars(kind).get(name, {}).items()}


def _setting(owner: type[Any], item: inspect.Parameter) -> dict[str, Any]:
    hints = get_type_hints(owner.__init__, include_extras=True)
    default, empty = item.default, inspect.Parameter.empty
    found = hints.get(item.name, Any if default in (empty, None) else type(default))
    for mark in getattr(found, "__metadata__", ()):
        if isinstance(mark, ReadFrom):
            found = mark.held
            default = default if mark.default is ... else mark.default
    known = {} if default is empty else {"default": default}
    documented = (sentences(kind).get(item.name, "") for kind in owner.__mro__)
    return {"type": found, **known, "sentence": next(filter(None, documented), "")}


@cache
def sentences(owner: type[Any]) -> dict[str, str]:
    """Return the descriptions in the section ``Args`` of a class's docstring."""
    _, _, after = inspect.cleandoc(owner.__doc__ or "").partition("\nArgs:\n")
    block = re.split(r"\n(?=\S)", after)[0]
    items = re.findall(r"^    (\**\w+): (.*?)(?=^    \**\w+: |\Z)", block, re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.replace("``", "`").split()) for name, text in items}


@cache
def described(family: str) -> Mapping[str, dict[str, Any]]:
    """Return the descriptions of a family's built-in parts, by name, without importing them."""
    return json.loads(SIGNATURES.read_text(encoding="utf-8"))[family]


def to_data(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description as JSON data, with encoded types."""
    settings = {
        name: {key: (_encode if key == "type" else _plain)(value) for key, value in one.items()}
        for name, one in description["settings"].items()
    }
    return {**description, "settings": settings}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _encode(annotation: Any) -> dict[str, Any]:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        found = _encode(inside[0]) if not isinstance(inside[1], OneOf) else {}
        for mark in inside[1:]:
            match mark:
                case OneOf():
                    found["one_of"] = list(mark.words)
                case Gt() | Ge() | Lt() | Le():
                    found[type(mark).__name__.lower()] = getattr(mark, type(mark).__name__.lower())
                case Len() | MinLen() | MaxLen():
                    ends = ("min_length", "max_length")
                    found |= {end: getattr(mark, end) for end in ends if hasattr(mark, end)}
        return found
    if origin is Literal:
        return {"one_of": list(inside)}
    if origin in (Union, types.UnionType):
        return {"any": [_encode(one) for one in inside]}
    if origin is dict:
        return {"mapping": _encode(inside[1])}
    if origin is not None and issubclass(origin, Sequence):
        return {"list": _encode(inside[0])}
    if annotation in (int, float, bool, str, type(None)):
        return {"type": "none" if annotation is type(None) else annotation.__name__}
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        place = f"{annotation.__module__}:{annotation.__qualname__}"
        return {"section": place, **to_data(describe(annotation))}
    raise TypeError(f"{annotation} is not supported as the type of a setting")


def collect() -> str:
    """Return the text of the signature file: descriptions of all built-in parts."""
    given = {family.name: family.given for family in FAMILIES}
    given["experts"] = (*given["skills"], "block")
    given["policy_skills"] = (*given["skills"], "kernel")
    data = {
        family: {
            kind: to_data(describe(resolve_name(place), given[family]))
            for kind, place in parts.items()
        }
        for family, parts in PARTS.items()
    }
    return _text(data, depth=4) + "\n"


def _text(value: Any, *, depth: int) -> str:
    """Return JSON with one line per setting."""
    if not depth or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = ",\n".join(
        f"{json.dumps(name)}: {_text(one, depth=depth - 1)}" for name, one in value.items()
    )
    return f"{{\n{inner}\n}}"


if __name__ == "__main__":
    SIGNATURES.write_text(collect(), encoding="utf-8")
