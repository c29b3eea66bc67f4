"""What parts lack, and one function that compares it with what is asked of them.

A section of settings names the features that it lacks, each with the reason and what to do
(`lacks`), and those that it asks of all others (`asks`, with its setting). A custom class may have
`lacks` as well. Commands ask for what they need of a run: ``trains``; ``merges`` a task and
``averages`` all skills (`merge-task` and recipes); ``exports_lora`` and ``exports_inventory``;
``ablates``; ``plots`` (also `explore`); ``adds_tasks``; and BabyAI, ``policies``.
"""

from collections.abc import Iterator, Mapping

from mttl.config.section import Section, holds
from mttl.io.errors import CheckpointError
from mttl.plugins.describe import notes_of


def missing_features(config: Section, asked: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each part that lacks a feature that is asked of it.

    Args:
        config: All settings of a run, or those of its model.
        asked: Who asks, by feature, as ``{"merges": "merge-task"}``; by default what the sections
            ask of each other.
    """
    parts = list(_parts(config))
    if asked is None:
        asked = {
            feature: _name(path, part, condition)
            for path, part in parts
            for feature, condition in notes_of(type(part), "asks").items()
            if holds(part, condition)
        }
    return [
        f"{who} does not work with {reason}"
        for feature, who in asked.items()
        for path, part in parts
        for reason in _lacking(path, part, feature)
    ]


def require_features(config: Section, asked: Mapping[str, str]) -> None:
    """Refuse a run that lacks what a command needs, with every part; see `missing_features`."""
    if problems := missing_features(config, asked):
        raise CheckpointError("\n".join(problems))


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
        yield f"{_name(path, part, condition)}: {reason}"


def _name(path: str, part: Section, condition: str) -> str:
    setting = condition.partition(" ")[0]
    value = getattr(part, setting or "kind", part)
    if setting in ("", "kind") or isinstance(value, Section):
        return f"section {path}" if isinstance(value, Section) else f"{path}.kind '{value}'"
    return f"{path}.{setting} ({value})"
