"""Format validation errors: file, key, value, allowed values and nearest match."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from mttl.config.plugin_section import PluginKinds, plugin_kinds_in
from mttl.config.section import kind_of, models_in
from mttl.io.errors import nearest
from mttl.io.record import requirement

Sources = dict[str, str]  # file by dotted key
# Requirements in words for settings with a pattern.
FORMS = {
    "trainer.max_time": "have the form days:hours:minutes:seconds",
    "run.name": "be the name of a folder, without slashes",
}


def format_errors(
    error: ValidationError, tree: Mapping[str, Any], sources: Sources, root: type[BaseModel]
) -> str:
    """Return one line per error."""
    lines: dict[str, list[str]] = {}
    for mistake in error.errors(include_url=False):
        keys, value = _locate(mistake["loc"], tree, root)
        lines.setdefault(".".join(keys), []).append(_line(mistake, keys, value, tree, root))
    found = []
    for key, messages in lines.items():
        first, *others = dict.fromkeys(messages)
        start = f"{first.partition(' must ')[0]} must "  # of all members of a union
        others = [f", or {other.removeprefix(start)}" for other in others]
        for line in "".join([first, *others]).splitlines():
            # Errors between sections have no key; they begin with the name of a setting.
            found.append(f"{_source(key or line.split(' ')[0], sources)}{line}")
    return "\n".join(found)


def _locate(
    location: tuple[int | str, ...], tree: Mapping[str, Any], root: type[BaseModel]
) -> tuple[list[str], Any]:
    """Return the keys and the value of a location, without the names of union members."""
    keys: list[str] = []
    value: Any = tree
    for part in location:
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif isinstance(value, Mapping) and (part in value or part in _fields(keys, tree, root)):
            value = value.get(part)
        else:
            continue
        keys.append(str(part))
    return keys, value


def _line(
    mistake: Any, keys: list[str], value: Any, tree: Mapping[str, Any], root: type[BaseModel]
) -> str:
    kind, context, key = mistake["type"], mistake.get("ctx", {}), ".".join(keys)
    if kind == "extra_forbidden":
        *parents, name = keys
        known = _fields(parents, tree, root)
        hint = nearest(name, known) or f" Its settings: {', '.join(known)}."
        if kinds := [k for k, m in _kinds(parents, tree, root).items() if name in m.model_fields]:
            hint = f" It is a setting of kind {', '.join(kinds)}."
        place = f"section '{'.'.join(parents)}'" if parents else "the configuration"
        return f"{key}: {place} has no setting '{name}'.{hint}"
    if kind == "missing":
        return f"{key}: is missing; it is required"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        allowed = [*_kinds(keys, tree, root)]
        if kind == "union_tag_not_found":
            return f"{key}.kind: is missing; it must be one of {', '.join(allowed)}"
        given = str(context["tag"])
        own = " A custom class is written module:Class." if _models(keys, tree, root)[1] else ""
        listed = f"{', '.join(allowed)}.{nearest(given, allowed)}{own}"
        return f"{key}.kind: '{given}' must be one of {listed}"
    if kind == "value_error":
        lines = str(context["error"]).splitlines()
        return "\n".join(f"{key}: {line}" if key else line for line in lines)
    if kind == "string_pattern_mismatch":
        return f"{key}: {_shown(value)} must {FORMS.get(key, context['pattern'])}"
    return f"{key}: {_shown(value)} {requirement({**mistake, 'input': value})}"


def _models(
    keys: Sequence[str], tree: Mapping[str, Any], root: type[BaseModel]
) -> tuple[list[type[BaseModel]], PluginKinds | None, str]:
    """Return the possible sections of a key, its annotation for plug-in classes, and its kind."""
    models: list[type[BaseModel]] = [root]
    own, kind = None, ""
    value: Any = tree
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value.get(key)
        if fields := [model.model_fields[key] for model in models if key in model.model_fields]:
            models = [inner for field in fields for inner in models_in(field.annotation)]
            own = plugin_kinds_in(fields[0].annotation, fields[0].metadata)
        kind = str(value.get("kind")) if isinstance(value, Mapping) else ""
        if own is not None and own.family.is_plugin(kind):
            models = [own.model_of(kind)]
    return models, own, kind


def _kinds(
    keys: Sequence[str], tree: Mapping[str, Any], root: type[BaseModel]
) -> dict[str, type[BaseModel]]:
    """Return the possible sections of a key by kind."""
    return {kind: model for model in _models(keys, tree, root)[0] if (kind := kind_of(model))}


def _fields(keys: Sequence[str], tree: Mapping[str, Any], root: type[BaseModel]) -> list[str]:
    """Return the settings of a section; of one kind only if the kind is known."""
    models, _, kind = _models(keys, tree, root)
    models = [model for model in models if kind_of(model) == kind] or models
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


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
