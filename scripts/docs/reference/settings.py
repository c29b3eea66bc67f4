"""The pages of settings: one per section, and a page that lists the sections."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from mttl.config.reference import Setting, settings_of
from mttl.config.worlds import WORLDS

HEAD = """\
# Settings

Look up the type, the default and the meaning of every setting. Write settings in YAML files, or on
the command line as `-k section.key=value`. `mttl train --settings optim` prints those of a section.

| section | what it sets | used by |
|---|---|---|
"""
SECTION = """\
# {title}

{sentence} Write these settings in a YAML file below `{name}:`, or on the command line as
`-k {example}=VALUE`. {used}
"""
TITLES = {"data": "text-to-text tasks", "rl": "BabyAI"}
ALL = " and ".join(TITLES.values())


def settings_pages() -> dict[str, str]:
    """Return the pages by path, from the folder of the reference."""
    pages = {}
    rows = []
    for stem, (name, section, users) in _sections().items():
        found = {path: [*those] for path, those in _by_path(settings_of(name, section))}
        kinds = [dict(one.kinds) for those in found.values() for one in those if one.kinds]
        sentence = section.description
        rows.append(f"| [`{name}`](settings/{stem}.md) | {sentence} | {users} |")
        head = SECTION.format(
            title=f"Settings: {name}" + (" (BabyAI)" if stem != name else ""),
            name=name,
            sentence=sentence,
            example=next(iter(found)),
            used="" if users == ALL else f"They are for {users} only.",
        )
        blocks = [_block(path, those, kinds) for path, those in found.items()]
        pages[f"settings/{stem}.md"] = "\n".join([head, *blocks])
    return {"settings.md": HEAD + "\n".join(rows) + "\n", **pages}


def settings_nav() -> list[dict[str, str]]:
    """Return the entries of the navigation."""
    return [
        {name if stem == name else f"{name} (BabyAI)": f"reference/settings/{stem}.md"}
        for stem, (name, _, _) in _sections().items()
    ]


def _sections() -> dict[str, tuple[str, Any, str]]:
    """Return the name, the field and the users of each section, by the name of its page."""
    found: dict[str, tuple[str, Any, str]] = {}
    for world in reversed(WORLDS):
        for name, section in world.schema.model_fields.items():
            title = TITLES[world.section]
            if name not in found:
                found[name] = name, section, title
            elif [*settings_of(name, found[name][1])] == [*settings_of(name, section)]:
                found[name] = name, found[name][1], ALL
            else:
                found[f"{world.section}_{name}"] = name, section, title
    return found


def _by_path(settings: Iterable[Setting]) -> Iterator[tuple[str, Iterator[Setting]]]:
    order: dict[str, list[Setting]] = {}
    for setting in settings:
        order.setdefault(setting.path, []).append(setting)
    return ((path, iter(those)) for path, those in order.items())


def _block(path: str, variants: list[Setting], kinds: list[dict[str, str]]) -> str:
    """Return a heading and what a setting allows and means, for each of its variants."""
    parts = [f"## `{path}` {{ #{path} }}"]
    for (words, sentence), same in groupby(variants, lambda one: (one.type, one.sentence)):
        first, *others = same
        if first.kinds:
            words = "module:Class, or a kind below" if "module:" in words else "a kind below"
            sentence = ""
        default = "" if others else f"; {_default(first)}"
        only = "" if others else _only(first, kinds)
        parts += [f"*{words}*{default}", f"{sentence} {only}".strip()]
        parts.append("\n".join(f"- `{kind}`: {text}" for kind, text in first.kinds.items()))
        if others:
            rows = [f"- {_default(one)}. {_only(one, kinds)}" for one in (first, *others)]
            parts.append("\n".join(rows))
    return "\n\n".join(filter(None, parts)) + "\n"


def _default(setting: Setting) -> str:
    if setting.default == "required":
        return "required"
    return f"default `{setting.default.removeprefix('default ')}`"


def _only(setting: Setting, kinds: list[dict[str, str]]) -> str:
    """Return which kinds have a setting, or which do not if these are fewer."""
    sentences = []
    for names in setting.only:
        having = names.split(", ")
        every = next((known for known in kinds if {*having} <= known.keys()), {})
        lacking = [kind for kind in every if kind not in having]
        few = 0 < len(lacking) < len(having)
        shown = ", ".join(f"`{kind}`" for kind in (lacking if few else having))
        sentences.append(f"{'Not' if few else 'Only'} for {shown}.")
    return " ".join(sentences)
