"""Reference of all settings: name, type, default and description from the schemas."""

from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mttl.config.plugin_section import plugin_kinds_in
from mttl.config.section import kind_of, models_in
from mttl.config.worlds import WORLDS
from mttl.io.errors import ConfigError, nearest

TYPES = {
    **{int: "whole number", float: "number", bool: "true or false", str: "text"},
    **{NoneType: "none", Any: "any value"},
}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def reference(section: str | None = None) -> str:
    """Return the settings of all worlds, or of one section, as Markdown.

    Raises:
        ConfigError: If no configuration has such a section.
    """
    known = {name for world in WORLDS for name in world.schema.model_fields}
    if section is not None and section not in known:
        raise ConfigError(
            f"there is no section '{section}'.{nearest(section, known)} Sections: "
            f"{', '.join(sorted(known))}"
        )
    blocks: list[str] = []
    shown: dict[str, Any] = {}
    for world in reversed(WORLDS):
        fields = world.schema.model_fields
        chosen = {name: fields[name] for name in fields if section in (None, name)}
        if chosen:
            blocks.append(f"## Settings of {world.title}")
        for name, field in chosen.items():
            blocks.append(f"### {name}\n\n{field.description}")
            if shown.get(name) == (field.annotation, field.metadata):
                blocks[-1] += " Same settings as above."
            else:
                blocks.append("\n".join(_lines(name, field)))
            shown[name] = field.annotation, field.metadata
    return "\n\n".join(blocks)


def _lines(path: str, section: FieldInfo) -> Iterator[str]:
    """Return one line per setting of a section, for all its kinds."""
    models = models_in(section.annotation)
    kinds = {kind: model for model in models if (kind := kind_of(model))}
    if kinds:
        meanings = " ".join(f"`{kind}`: {model.__doc__}" for kind, model in kinds.items())
        own = ["module:Class"] if plugin_kinds_in(section.annotation, section.metadata) else []
        yield _line(f"{path}.kind", " | ".join([*kinds, *own]), section, meanings)
    elif plugin_kinds_in(section.annotation, section.metadata):
        yield _line(f"{path}.kind", "module:Class", section)
    lines: dict[str, list[str]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            if name == "kinds":  # a list of such sections
                line = _line(f"{path}.{name}", f"list of sections `{path}`", field)
                lines[line] = [kind_of(model) or ""]
            elif name != "kind" or len(get_args(field.annotation)) > 1:
                for line in _of_field(f"{path}.{name}", field):
                    lines.setdefault(line, []).append(kind_of(model) or "")
    for line, having in lines.items():
        yield line if len(having) == len(models) else f"{line} *Only {', '.join(having)}.*"


def _of_field(path: str, field: FieldInfo) -> Iterator[str]:
    if models_in(field.annotation) and get_origin(field.annotation) is not dict:
        yield from _lines(path, field)
    else:
        yield _line(path, _words(field.annotation, field.metadata), field)


def _line(path: str, kind: str, field: FieldInfo, meaning: str = "") -> str:
    words = (meaning or field.description or "").split()
    return f"- `{path}` ({kind}; {_default(field)}): {' '.join(words)}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        value = kind_of(type(value))
    if value is None or isinstance(value, bool):
        value = {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, list):
        value = f"[{', '.join(map(str, value))}]"
    return f"default {value}"


def _words(annotation: Any, metadata: Any = ()) -> str:
    """Return a type in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(inside[0], inside[1:])
    if origin is Literal:
        return " | ".join(map(str, inside))
    if origin is list:
        return f"list of {_words(inside[0])}"
    if origin is dict:
        return f"mapping to {_words(inside[1])}"
    if inside:
        return " or ".join(_words(part) for part in inside)
    if annotation not in TYPES:
        return "mapping of " + ", ".join(annotation.model_fields)
    # Bounds are separate, or part of a field's description.
    bounds = [bound for item in metadata for bound in getattr(item, "metadata", [item])]
    limits = [
        f" {sign} {getattr(bound, name)}"
        for bound in bounds
        for name, sign in BOUNDS.items()
        if hasattr(bound, name)
    ]
    return TYPES[annotation] + ",".join(limits)
