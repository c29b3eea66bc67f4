"""Check that all sections of a configuration support the features that are required.

`Section.lacks` maps a feature that a section does not support to the reason and the remedy.
`Section.asks` maps a feature that a section requires of all others to its setting. A plug-in class
may also define `lacks`. Commands require: ``trains``; ``merges`` and ``averages`` (`merge-task`,
recipes); ``exports_lora``, ``exports_inventory``, ``exports_policy``; ``ablates``; ``plots`` (also
`explore`); ``adds_tasks``; ``policies`` (BabyAI); ``answers`` and ``generates`` (of tasks);
``stacks`` (`skills.on`); ``stands_alone`` (`save_pretrained`, libraries).
"""

from collections.abc import Iterator, Mapping

from mttl.config.section import Section, holds
from mttl.io.errors import CheckpointError, MttlError
from mttl.plugins.describe import notes_of


def missing_features(config: Section, asked: Mapping[str, str] | None = None) -> list[str]:
    """Return one sentence per section that does not support a required feature.

    ``asked`` are features with the name of what requires them (``{"merges": "merge-task"}``); by
    default those that the sections require of each other.
    """
    parts = list(_parts(config))
    asked = asked_features(config) if asked is None else asked
    return [
        f"{who} does not work with {reason}"
        for feature, who in asked.items()
        for path, part in parts
        for reason in _lacking(path, part, feature)
    ]


def asked_features(config: Section) -> dict[str, str]:
    """Return the features that sections require of each other, with what requires them."""
    return {
        feature: _name(path, part, condition)
        for path, part in _parts(config)
        for feature, condition in notes_of(type(part), "asks").items()
        if holds(part, condition)
    }


def require_features(
    config: Section, asked: Mapping[str, str] | None, error: type[MttlError] = CheckpointError
) -> None:
    """Raise an error if a configuration lacks features that a command needs."""
    if problems := missing_features(config, asked):
        raise error("\n".join(problems))


def _parts(section: Section, path: str = "") -> Iterator[tuple[str, Section]]:
    for name, value in section:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Section):
                inner = path or name if isinstance(value, list) else f"{path}.{name}".strip(".")
                yield inner, one
                yield from _parts(one, inner)


def _lacking(path: str, part: Section, feature: str) -> Iterator[str]:
    lack = notes_of(type(part), "lacks").get(feature, "")
    condition, reason = ("", lack) if isinstance(lack, str) else lack
    if reason and holds(part, condition):
        yield f"{_name(path, part, condition)}: {reason.replace('{path}', path)}"


def _name(path: str, part: Section, condition: str) -> str:
    setting = condition.partition(" ")[0]
    value = getattr(part, setting or "kind", part)
    if setting in ("", "kind") or isinstance(value, Section):
        return f"section {path}" if isinstance(value, Section) else f"{path}.kind '{value}'"
    if setting not in type(part).model_fields:  # a property: names of settings
        return f"{path} ({', '.join(value)})"
    return f"{path}.{setting} ({str(value).lower() if isinstance(value, bool) else value})"
