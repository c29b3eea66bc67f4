"""Reference of all settings: name, type, default and description from the schemas."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class Setting:
    """One setting of a section, in words.

    ``kinds`` describes each kind, if the setting is a kind; ``only`` are the kinds with this
    setting, if not all have it, with one entry per enclosing section.
    """

    path: str
    type: str
    default: str
    sentence: str
    kinds: Mapping[str, str] = field(default_factory=dict, hash=False)
    only: tuple[str, ...] = ()

    def line(self) -> str:
        """Return a line of a Markdown list."""
        of_kinds = " ".join(f"`{kind}`: {text}" for kind, text in self.kinds.items())
        only = "".join(f" *Only {kinds}.*" for kinds in self.only)
        return f"- `{self.path}` ({self.type}; {self.default}): {of_kinds or self.sentence}{only}"


def reference(section: str | None = None) -> str:
    """Return the settings of all worlds, or of one section, as Markdown.

    Raises a `ConfigError` if no configuration has such a section.
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
        for name, inner in chosen.items():
            blocks.append(f"### {name}\n\n{inner.description}")
            if shown.get(name) == (inner.annotation, inner.metadata):
                blocks[-1] += " Same settings as above."
            else:
                lines = [setting.line() for setting in settings_of(name, inner)]
                blocks.append("\n".join(lines))
            shown[name] = inner.annotation, inner.metadata
    return "\n\n".join(blocks)


def settings_of(path: str, section: FieldInfo) -> Iterator[Setting]:
    """Yield every setting of a section, for all its kinds."""
    models = models_in(section.annotation)
    kinds = {kind: model for model in models if (kind := kind_of(model))}
    plugins = plugin_kinds_in(section.annotation, section.metadata)
    if kinds or plugins:
        names = " | ".join([*kinds, *(["module:Class"] if plugins else [])])
        sentences = {kind: " ".join((model.__doc__ or "").split()) for kind, model in kinds.items()}
        yield replace(_setting(f"{path}.kind", names, section), kinds=sentences)
    found: dict[Setting, list[str]] = {}
    for model in models:
        for name, inner in model.model_fields.items():
            if name == "kinds":  # a list of such sections
                one = _setting(f"{path}.{name}", f"list of sections `{path}`", inner)
                found[one] = [kind_of(model) or ""]
            elif name != "kind" or len(get_args(inner.annotation)) > 1:
                for one in _of_field(f"{path}.{name}", inner):
                    found.setdefault(one, []).append(kind_of(model) or "")
    for one, having in found.items():
        every = len(having) == len(models)
        yield one if every else replace(one, only=(*one.only, ", ".join(having)))


def _of_field(path: str, inner: FieldInfo) -> Iterator[Setting]:
    if models_in(inner.annotation) and get_origin(inner.annotation) is not dict:
        if get_origin(inner.annotation) is list:
            yield _setting(path, "list", inner)
        yield from settings_of(path, inner)
    else:
        yield _setting(path, _words(inner.annotation, inner.metadata), inner)


def _setting(path: str, words: str, inner: FieldInfo) -> Setting:
    return Setting(path, words, _default(inner), " ".join((inner.description or "").split()))


def _default(inner: FieldInfo) -> str:
    value = inner.get_default(call_default_factory=True)
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
