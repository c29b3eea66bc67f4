"""Validation errors in words: file, key, value, what is allowed, and the nearest match."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from mttl.config.merge_tree import Sources
from mttl.config.plugin_section import PluginKinds, plugin_kinds_in
from mttl.config.section import kind_of, models_in
from mttl.io.errors import nearest
from mttl.io.record import requirement

# What the patterns of text settings ask for.
FORMS = {
    "trainer.max_time": "have the form days:hours:minutes:seconds",
    "run.name": "be the name of a folder, without slashes",
}


def format_errors(
    error: ValidationError, tree: Mapping[str, Any], sources: Sources, root: type[BaseModel]
) -> str:
    """Return one line per mistake."""
    lines: dict[str, list[str]] = {}
    for mistake in error.errors(include_url=False):
        key, value, models = _locate(mistake["loc"], tree, root)
        lines.setdefault(key, []).append(_line(mistake, key, value, models, root))
    found = []
    for key, messages in lines.items():
        for line in _alternatives(list(dict.fromkeys(messages))).splitlines():
            # What holds between sections has no place of its own; it begins with a setting's name.
            found.append(f"{_source(key or line.split(' ')[0], sources)}{line}")
    return "\n".join(found)


def _alternatives(messages: list[str]) -> str:
    """Join what the members of a union each say about one value."""
    first, *others = messages
    start = f"{first.partition(' must ')[0]} must "
    return first + "".join(f", or {other.removeprefix(start)}" for other in others)


def _locate(
    location: tuple[int | str, ...], tree: Mapping[str, Any], root: type[BaseModel]
) -> tuple[str, Any, list[type[BaseModel]]]:
    """Follow a location through the tree; parts that name a member of a union are not keys."""
    keys: list[str] = []
    value: Any = tree
    models: list[type[BaseModel]] = [root]
    own: PluginKinds | None = None
    for part in location:
        if (
            own is not None
            and isinstance(value, Mapping)
            and own.family.is_plugin(value.get("kind"))
        ):
            models = [own.model_of(value["kind"])]
        inside = isinstance(value, Mapping) and part in value
        field = any(part in model.model_fields for model in models)
        tag = isinstance(value, Mapping) and part == value.get("kind") and len(models) > 1
        if isinstance(value, Mapping) and (inside or field) and not tag:
            if field:  # otherwise a name that users choose, or one that is unknown
                fields = [m.model_fields[str(part)] for m in models if part in m.model_fields]
                models = [inner for each in fields for inner in models_in(each.annotation)]
                own = plugin_kinds_in(fields[0].annotation, fields[0].metadata)
            value = value.get(part)
            keys.append(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
            keys.append(str(part))
        elif tag:
            models = [model for model in models if kind_of(model) == part]
        elif location[-1] == part and not isinstance(value, Mapping | list):
            continue
        elif location[-1] == part and isinstance(value, Mapping):
            keys.append(str(part))
            value = None
    return ".".join(keys), value, models


def _line(
    mistake: Any, key: str, value: Any, models: list[type[BaseModel]], root: type[BaseModel]
) -> str:
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "extra_forbidden":
        parent, _, name = key.rpartition(".")
        known = [field for model in models for field in model.model_fields] or _known(parent, root)
        hint = (
            _other_kinds(name, parent, root)
            or nearest(name, known)
            or f" It has: {', '.join(known)}."
        )
        place = f"section '{parent}'" if parent else "the configuration"
        return f"{key}: {place} has no '{name}'.{hint}"
    if kind == "missing":
        return f"{key}: is required and missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        allowed = [name for model in models if (name := kind_of(model))]
        if kind == "union_tag_not_found":
            return f"{key}.kind: is required; one of {', '.join(allowed)}"
        given = "nothing" if context.get("tag") == "None" else str(context.get("tag"))
        listed = ", ".join(allowed)
        own = " A custom class is module:Class." if _takes_plugins(key, root) else ""
        return f"{key}.kind: '{given}' must be one of {listed}.{nearest(given, allowed)}{own}"
    if kind == "value_error":
        lines = str(context["error"]).splitlines()
        return "\n".join(f"{key}: {line}" if key else line for line in lines)
    if kind == "string_pattern_mismatch":
        form = FORMS.get(key, context["pattern"])
        return f"{key}: {_shown(value)} must {form}"
    return f"{key}: {_shown(value)} {requirement({**mistake, 'input': value})}"


def _takes_plugins(section: str, root: type[BaseModel]) -> bool:
    parent, _, name = section.rpartition(".")
    models = _section_models(parent, root)
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    return any(plugin_kinds_in(field.annotation, field.metadata) for field in fields)


def _other_kinds(name: str, section: str, root: type[BaseModel]) -> str:
    kinds = [
        kind
        for model in _section_models(section, root)
        if name in model.model_fields and (kind := kind_of(model))
    ]
    return f" It belongs to kind {', '.join(kinds)}." if kinds else ""


def _known(section: str, root: type[BaseModel]) -> list[str]:
    """Return the settings of a section, of all its kinds."""
    models = _section_models(section, root)
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _section_models(section: str, root: type[BaseModel]) -> list[type[BaseModel]]:
    models: list[type[BaseModel]] = [root]
    for part in filter(None, section.split(".")):
        models = [
            inner
            for model in models
            if part in model.model_fields
            for inner in models_in(model.model_fields[part].annotation)
        ]
    return models


def _source(key: str, sources: Sources) -> str:
    while key:
        if key in sources:
            return f"{sources[key]}: "
        key = key.rpartition(".")[0]
    return ""


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'"
