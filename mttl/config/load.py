"""Load configurations: find, merge, override and validate YAML files."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mttl.config.babyai_schema import BabyAIConfig
from mttl.config.config_errors import Sources, format_errors
from mttl.config.plugin_section import IMPORT
from mttl.config.schema import Config
from mttl.config.section import Section
from mttl.config.worlds import WORLDS, world_of
from mttl.io import yaml12
from mttl.io.errors import ConfigError, nearest
from mttl.io.files import shipped_folder
from mttl.io.reading import read_table, read_text, shown
from mttl.plugins.describe import described, notes_of

Tree = dict[str, Any]
C = TypeVar("C", bound=Section)
COMMAND_LINE = "-k"
CUSTOM = "custom.yaml"  # complete, for a file of custom tasks
CONFIGS = "configs"  # in the working directory, and shipped with the package


def configs_dir() -> Path:
    """Return the folder of the shipped configurations."""
    return shipped_folder() / CONFIGS


def load_config(
    names: str | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    plugins: Mapping[str, str] | None = IMPORT,
    as_written: bool = False,
) -> Config:
    """Load and validate a configuration for text-to-text tasks from files and overrides.

    Args:
        names: Files, merged left to right: ``"a.yaml+b.yaml"`` or a list. A file is looked up as
            given, in ``configs/`` of the working directory, then in the shipped ``configs/``;
            ``.yaml`` may be omitted.
        overrides: Settings ``"section.key=value"`` in YAML; later ones override earlier ones.
        plugins: Treatment of plug-in classes: import them (default),
            `mttl.config.plugin_section.LEAVE` to skip them, or None to import trusted ones only.
        as_written: Keep `data.prefix: auto`; by default it is resolved according to the router.

    Returns:
        The configuration. By default the run is named after the files.

    Raises:
        ConfigError: If a file is missing, malformed or empty, or values are invalid; the message
            lists every error with file, key, value and allowed values.
    """
    config = load_any_config(names, overrides, plugins=plugins, as_written=as_written)
    if not isinstance(config, Config):
        world = world_of(config)
        raise ConfigError(
            f"'{names}' has a section '{world.section}', which describes {world.title}; this "
            "command needs a configuration for text-to-text tasks"
        )
    return config


def load_any_config(
    names: str | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    plugins: Mapping[str, str] | None = IMPORT,
    as_written: bool = False,
    run: str | None = None,
    origins: Sources | None = None,
) -> Section:
    """Load a configuration of any world, identified by its sections; see `load_config`.

    ``origins`` receives the file of each key that is set, or ``-k``.
    """
    listed = names.split("+") if isinstance(names, str) else list(names)
    listed = [name for name in listed if name] if run is not None else listed
    tree, sources, paths = _join(listed) if listed else ({}, {}, [])
    if run is not None and all(_missing(tree, world.schema) for world in WORLDS):
        path = Path(run) / "config.yaml"
        if not path.is_file():
            raise ConfigError(
                f"'{run}' is not a run, because it has no config.yaml. Correct the path, or name a "
                "configuration with -c"
            )
        tree, sources, paths = _join([str(path), *listed])
    elif not listed:
        find_file("")
    for text in overrides:
        tree = _override(tree, text, sources)
    if origins is not None:
        origins |= {"run.name": "names of the files", **sources}
        for name, value in (("data.prefix", "auto"), ("skills.n_skills", "per_column")):
            section, _, key = name.partition(".")
            if tree.get(section, {}).get(key) == value:
                origins[name] += f" ({value})"
    tree = _of_the_gym(tree)
    name = "-".join(path.stem for path in paths)
    tree = {**tree, "run": {"name": name, **tree.get("run", {})}}
    world = next((world for world in WORLDS if world.section in tree), WORLDS[-1])
    schema = world.schema
    try:
        config = schema.model_validate(tree, context=plugins)
    except ValidationError as error:
        found = format_errors(error, tree, sources, schema)
        kind = str(tree.get("router", {}).get("kind"))
        lack = described("routers").get(kind, {}).get("lacks", {}).get("policies")
        if schema is BabyAIConfig and isinstance(lack, str):  # its file has more settings for text
            found = f"a policy (section rl) does not work with router.kind '{kind}': {lack}"
        if len(_missing(tree, schema)) > 1:
            whole = CUSTOM if tree.get("data", {}).get("tasks") else world.whole
            of_folder = f"{paths[0].parent.name}.yaml"  # parts lie in folders of their worlds
            whole = next((one.whole for one in WORLDS if one.whole == of_folder), whole)
            found += f"\nBegin with a complete file, such as {whole}+{'+'.join(listed)}"
        raise ConfigError(found) from None
    if isinstance(config, Config) and config.data.prefix == "auto" and not as_written:
        config = _with_prefix(config)
    return config


def _missing(tree: Tree, schema: type[Section]) -> list[str]:
    """Return the required sections that a tree lacks."""
    fields = schema.model_fields.items()
    return [name for name, field in fields if field.is_required() and name not in tree]


def find_file(name: str, suffix: str = "", *, setting: str = "") -> Path:
    """Return the path of a file: as given, in ``configs/`` here, or among the shipped files.

    The suffix may be omitted. The `ConfigError` for a missing file names ``setting``, if given.
    """
    if not name:
        raise ConfigError("empty file name; join several files as a.yaml+b.yaml")
    folder = configs_dir()
    endings = [""] if not suffix or name.endswith(suffix) else ["", suffix]
    places = (Path(), Path(CONFIGS), folder)
    candidates = [place / (name + ending) for ending in endings for place in places]
    for path in candidates:
        if os.path.exists(path) and not os.path.isdir(path):
            return path
    missing = f"{setting}: " * bool(setting) + f"the file '{name}' does not exist"
    if not Path(name).is_absolute():
        there = [(place, path) for place in places[1:] for path in place.rglob("*")]
        files = {str(path.relative_to(place)) for place, path in there if path.is_file()}
        like = nearest(name, sorted(files))
        missing += f" in the working directory, {CONFIGS}/ or {folder}.{like}"
    raise ConfigError(missing)


def resolve_folder(name: str) -> Path:
    """Return the folder that a setting names: the given path, or else the shipped folder."""
    path, shipped = Path(name), shipped_folder() / name
    return shipped if not os.path.exists(path) and os.path.isdir(shipped) else path


def dump_config(config: Section) -> str:
    """Return the configuration as YAML; `load_config` reads it back to an equal one."""
    sections = config.model_dump(mode="json")
    settings = {name: section for name, section in sections.items() if section is not None}
    return yaml12.dump(settings)


def listed_config(config: Section, origins: Sources) -> str:
    """Return the configuration as YAML, with the source of each value in a comment."""
    return "\n".join(_listed(yaml12.parse(dump_config(config)), origins, ()))


def _listed(tree: Tree, origins: Sources, above: tuple[str, ...]) -> Iterator[str]:
    for key, value in tree.items():
        path = (*above, str(key))
        start = "  " * len(above) + yaml12.dump({key: 0}).strip().removesuffix(" 0")
        if isinstance(value, dict) and value:
            yield start
            yield from _listed(value, origins, path)
        else:
            line = f"{start} {json.dumps(value, ensure_ascii=False)}"
            yield f"{line:<40} # {origins.get('.'.join(path), 'default')}"


def _read(path: Path) -> Tree:
    tree = yaml12.read_yaml(path, ConfigError)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must contain sections with settings, not {shown(tree)}")
    if isinstance(tree.get("skills"), list):
        tree = tree | {"skills": {"kind": "several", "kinds": tree["skills"]}}
    for section, settings in tree.items():
        if not isinstance(settings, dict):
            raise ConfigError(
                f"{path}: section '{section}' must contain settings, not {shown(settings)}"
            )
    return tree


def _join(names: Sequence[str]) -> tuple[Tree, Sources, list[Path]]:
    """Return the merged files, the file of each key, and the files' paths."""
    tree: Tree = {}
    sources: Sources = {}
    paths = [find_file(name, suffix=".yaml") for name in names]
    for path in paths:
        tree = merge(tree, _read(path), str(path), sources)
    return tree, sources, paths


def _with_prefix(config: Config) -> Config:
    """Replace `data.prefix: auto` by `name` or `none`, according to the router."""
    router, rows = config.router, []
    if isinstance(getattr(router, "factors", None), Mapping):
        rows = [tuple(sorted(own)) for own in router.factors.values()]
    elif router.kind == "expert":
        rows = _shares(router.matrix)
    blind = "tells_tasks_apart" in notes_of(type(router), "lacks") or len({*rows}) < len(rows)
    data = config.data.model_copy(update={"prefix": "name" if blind else "none"})
    return config.model_copy(update={"data": data})


def _shares(matrix: str) -> list[tuple[float, ...]]:
    """Return the normalised rows of an expert router's matrix; none if it is malformed."""
    try:
        table = read_table(find_file(matrix), ConfigError)
        rows = [[float(weight) for weight in list(row.values())[1:]] for row in table]
        # Normalised rows of equal weights may differ by rounding.
        return [tuple(round(weight / sum(row), 9) for weight in row) for row in rows]
    except (ValueError, ZeroDivisionError):
        return []  # reported when the matrix is read


def _of_the_gym(tree: Tree) -> Tree:
    """Fill in the expert router's matrix from `data`, and one skill per column."""
    data, skills, router = (tree.get(name, {}) for name in ("data", "skills", "router"))
    expert = router.get("kind") == "expert"
    matrix = router.get("matrix", data.get("expert_matrix")) if expert else None
    if matrix is not None:
        tree = tree | {"router": router | {"matrix": matrix}}
    if skills.get("n_skills") != "per_column":
        return tree
    if not isinstance(matrix, str):
        raise ConfigError(
            "skills.n_skills 'per_column' needs an expert router with a matrix: set router.kind: "
            "expert, and router.matrix or data.expert_matrix to a CSV file"
        )
    first, *_ = read_text(find_file(matrix), ConfigError).split("\n")
    # A header without skills is reported when the matrix is read.
    return tree | {"skills": skills | {"n_skills": max(1, first.count(","))}}


def merge(
    tree: Tree, later: Mapping[str, Any], source: str, sources: Sources, prefix: str = ""
) -> Tree:
    """Return ``tree`` updated by the values of ``later``.

    Mappings are merged key by key. A mapping with a different ``kind`` or ``model_type`` replaces
    the earlier one; if only the model type differs, the ``kind`` is kept. An empty mapping inside a
    section clears it. ``sources`` receives the ``source`` of every dotted key; ``prefix`` is the
    dotted path of the trees within a larger one, with a final dot.
    """
    result = dict(tree)
    for key, value in later.items():
        name = f"{prefix}{key}"
        before = result.get(key)
        sources[name] = source
        if not isinstance(value, Mapping):
            result[key] = value
            continue
        emptied = bool(prefix) and not value
        common = {"kind", "model_type"} & value.keys()
        if (
            not isinstance(before, Mapping)
            or emptied
            or any(before.get(one, value[one]) != value[one] for one in common)
        ):
            kind = before.get("kind") if isinstance(before, Mapping) and not emptied else None
            before = {} if kind is None else {"kind": kind}
            for old in [known for known in sources if known.startswith(f"{name}.")]:
                if old.removeprefix(f"{name}.") not in before:
                    del sources[old]
        result[key] = merge(dict(before), value, source, sources, f"{name}.")
    return result


def with_value(
    tree: Tree, name: str, value: Any, source: str = "", sources: Sources | None = None
) -> Tree:
    """Return ``tree`` with the setting of a dotted name changed."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return merge(tree, value, source, {} if sources is None else sources)


def with_settings(config: C, values: Mapping[str, Any]) -> C:
    """Return a configuration with settings changed by dotted name, validated."""
    tree = config.model_dump(mode="json")
    for name, value in values.items():
        tree = with_value(tree, name, value)
    try:
        return type(config).model_validate(tree)
    except ValidationError as error:
        raise ConfigError(format_errors(error, tree, {}, type(config))) from None


def _override(tree: Tree, text: str, sources: Sources) -> Tree:
    key, equals, value = text.partition("=")
    if not equals or "." not in key or not all(key.split(".")):
        raise ConfigError(f"{COMMAND_LINE} {text}: must have the form section.key=value")
    parsed = yaml12.parse_at(f"{COMMAND_LINE} {text}", value, ConfigError)
    return with_value(tree, key, parsed, COMMAND_LINE, sources)
