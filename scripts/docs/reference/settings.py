"""The pages of settings: one per section, and a page that lists the sections."""

from dataclasses import replace

from mttl.config.reference import Setting, settings_of
from mttl.config.worlds import WORLDS

HEAD = """\
# Settings

Look up the type, the default and the meaning of every setting. Write settings in YAML files, or on the
command line as `-k section.key=value`. `mttl train --settings optim` prints the settings of a section.

| section | what it sets | used by |
|---|---|---|
"""
SECTION = """\
# Settings: {name}

{sentence} Write these settings in a YAML file below `{name}:`, or on the command line as
`-k {example}=VALUE`.
{note}"""
TITLES = {"data": "text-to-text tasks", "rl": "BabyAI"}


def settings_pages() -> dict[str, str]:
    """Return the pages by path, from the folder of the reference."""
    pages = {}
    rows = []
    names = {name: None for world in reversed(WORLDS) for name in world.schema.model_fields}
    for name in names:
        found, sentences, worlds = _section(name)
        used = "both" if len(worlds) == len(WORLDS) else worlds[0]
        rows.append(f"| [`{name}`](settings/{name}.md) | {sentences[0]} | {used} |")
        note = "" if used == "both" else f"Only configurations for {used} have this section.\n"
        example = next(iter(found))
        head = SECTION.format(name=name, sentence=sentences[0], example=example, note=note)
        blocks = [_block(path, variants) for path, variants in found.items()]
        pages[f"settings/{name}.md"] = "\n".join([head, *blocks])
    pages["settings.md"] = HEAD + "\n".join(rows) + "\n"
    return pages


def settings_nav() -> list[dict[str, str]]:
    """Return the entries of the navigation."""
    sections = [path for path in settings_pages() if path != "settings.md"]
    names = {path: path.removeprefix("settings/").removesuffix(".md") for path in sections}
    return [{name: f"reference/{path}"} for path, name in names.items()]


def _section(name: str) -> tuple[dict[str, list[Setting]], list[str], list[str]]:
    """Return the settings of a section by path, its sentences, and the worlds that have it."""
    having = {
        TITLES[world.section]: world.schema.model_fields[name]
        for world in reversed(WORLDS)
        if name in world.schema.model_fields
    }
    worlds: dict[Setting, list[str]] = {}
    for title, section in having.items():
        for setting in settings_of(name, section):
            if setting.kinds:  # its sentence is that of the section
                setting = replace(setting, sentence="")
            worlds.setdefault(setting, []).append(title)
    found: dict[str, list[Setting]] = {}
    for setting, titles in worlds.items():
        only = setting.only if len(titles) == len(having) else (*setting.only, titles[0])
        found.setdefault(setting.path, []).append(replace(setting, only=only))
    return found, [section.description or "" for section in having.values()], list(having)


def _block(path: str, variants: list[Setting]) -> str:
    """Return a heading and what a setting allows and means, for each of its variants."""
    parts = [f"## `{path}` {{ #{path} }}"]
    for one in variants:
        allowed = "module:Class, or one of these kinds" if one.kinds else one.type
        if one.kinds and "module:Class" not in one.type:
            allowed = "one of these kinds"
        default = one.default.removeprefix("default ")
        shown = "required" if one.default == "required" else f"default `{default}`"
        parts.append(f"*{allowed}*; {shown}")
        only = " ".join(f"Only for {kinds}." for kinds in one.only)
        parts.append(f"{one.sentence} {only}".strip())
        parts.append("\n".join(f"- `{kind}`: {text}" for kind, text in one.kinds.items()))
    return "\n\n".join(filter(None, parts)) + "\n"
