"""From names of files and overrides to a validated configuration."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mttl.config.config_errors import Sources, format_errors
from mttl.config.plugin_section import IMPORT
from mttl.config.schema import Config
from mttl.config.section import Section
from mttl.config.worlds import WORLDS, world_of
from mttl.io import yaml12
from mttl.io.errors import ConfigError, nearest
from mttl.io.files import shipped_folder
from mttl.io.reading import read_text
from mttl.plugins.describe import notes_of

Tree = dict[str, Any]
COMMAND_LINE = "-k"
CONFIGS = "configs"  # in the working directory, and among what is shipped


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
    """Read, merge, override and validate a configuration for text-to-text tasks.

    Args:
        names: Files to merge left to right: ``"a.yaml+b.yaml"``, or a list. Each is looked up as
            given, then under ``configs/`` here, then among those that are shipped, with or
            without ``.yaml``.
        overrides: ``"section.key=value"``; the value is YAML, the later wins.
        plugins: Treatment of custom classes: import them, because the user names them;
            `mttl.config.plugin_section.LEAVE` them out; or None: import those that are trusted.
        as_written: Keep `data.prefix: auto`; otherwise it is replaced according to the router.

    Returns:
        The configuration. Its name comes from the files where none is given.

    Raises:
        ConfigError: If a file is missing or malformed, or nothing is left of it, or values do not
            validate; the message names file, key, value and what is allowed, for all mistakes at
            once.
    """
    config = load_any_config(names, overrides, plugins=plugins, as_written=as_written)
    if not isinstance(config, Config):
        world = world_of(config)
        raise ConfigError(
            f"'{names}' has a section {world.section}: it describes {world.title}, not "
            "text-to-text tasks"
        )
    return config


def load_any_config(
    names: str | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    plugins: Mapping[str, str] | None = IMPORT,
    as_written: bool = False,
    run: str | None = None,
) -> Section:
    """Read a configuration of any world; its sections tell which. See `load_config`."""
    listed = names.split("+") if isinstance(names, str) else list(names)
    listed = [name for name in listed if name] if run is not None else listed
    tree, sources, paths = _join(listed) if listed else ({}, {}, [])
    if run is not None and all(_missing(tree, world.schema) for world in WORLDS):
        path = Path(run) / "config.yaml"
        if not path.is_file():
            raise ConfigError(f"'{run}' has no config.yaml: name a configuration with -c")
        tree, sources, paths = _join([str(path), *listed])
    elif not listed:
        find_file("")
    for text in overrides:
        tree = _override(tree, text, sources)
    tree = _of_the_gym(tree)
    name = "-".join(path.stem for path in paths)
    tree = {**tree, "run": {"name": name, **tree.get("run", {})}}
    world = next((world for world in WORLDS if world.section in tree), WORLDS[-1])
    schema = world.schema
    try:
        config = schema.model_validate(tree, context=plugins)
    except ValidationError as error:
        found = format_errors(error, tree, sources, schema)
        if len(_missing(tree, schema)) > 1:
            found += f"\nName a whole configuration first, as {world.whole}+{'+'.join(listed)}"
        raise ConfigError(found) from None
    if isinstance(config, Config) and config.data.prefix == "auto" and not as_written:
        config = _with_prefix(config)
    return config


def _missing(tree: Tree, schema: type[Section]) -> list[str]:
    """Return the sections that a configuration needs and a tree lacks."""
    fields = schema.model_fields.items()
    return [name for name, field in fields if field.is_required() and name not in tree]


def find_file(name: str, suffix: str = "", *, setting: str = "") -> Path:
    """Return the path of a file: as given, under ``configs/`` here, or as it is shipped.

    The suffix may be left out of the name. A `ConfigError` names the setting, if one has the name.
    """
    if not name:
        raise ConfigError("the name of a file is empty; files are joined as a.yaml+b.yaml")
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
        missing += f" here, nor in {CONFIGS}/, nor in {folder}.{like}"
    raise ConfigError(missing)


def resolve_folder(name: str) -> Path:
    """Return a folder that a setting names: as given, or as it is shipped."""
    path, shipped = Path(name), shipped_folder() / name
    return shipped if not os.path.exists(path) and os.path.isdir(shipped) else path


def dump_config(config: Section) -> str:
    """Return the configuration as YAML that `load_config` reads back to an equal one."""
    sections = config.model_dump(mode="json")
    settings = {name: section for name, section in sections.items() if section is not None}
    return yaml12.dump(settings)


def _read(path: Path) -> Tree:
    tree = yaml12.read_yaml(path, ConfigError)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold sections with settings, not {_kind_of(tree)}")
    if isinstance(tree.get("skills"), list):
        tree = tree | {"skills": {"kind": "several", "kinds": tree["skills"]}}
    for section, settings in tree.items():
        if not isinstance(settings, dict):
            raise ConfigError(
                f"{path}: section '{section}' must hold settings, not {_kind_of(settings)}"
            )
    return tree


def _join(names: Sequence[str]) -> tuple[Tree, Sources, list[Path]]:
    """Return files merged left to right, where each value comes from, and the files' paths."""
    tree: Tree = {}
    sources: Sources = {}
    paths = [find_file(name, suffix=".yaml") for name in names]
    for path in paths:
        tree = merge(tree, _read(path), str(path), sources)
    return tree, sources, paths


def _with_prefix(config: Config) -> Config:
    """Replace `data.prefix: auto` by what it means below the router."""
    router, rows = config.router, []
    if isinstance(getattr(router, "factors", None), Mapping):
        rows = [tuple(sorted(own)) for own in router.factors.values()]
    elif router.kind == "expert":
        rows = _shares(router.matrix)
    blind = "tells_tasks_apart" in notes_of(type(router), "lacks") or len({*rows}) < len(rows)
    data = config.data.model_copy(update={"prefix": "name" if blind else "none"})
    return config.model_copy(update={"data": data})


def _shares(matrix: str) -> list[tuple[float, ...]]:
    """Return the shares of skills that an expert's matrix gives tasks; none if it is malformed."""
    try:
        lines = csv.reader(io.StringIO(read_text(find_file(matrix), ConfigError), newline=""))
        rows = [[float(weight) for weight in cells] for _, *cells in list(lines)[1:]]
        # Shares of the same weights may differ by rounding.
        return [tuple(round(weight / sum(row), 9) for weight in row) for row in rows]
    except (ConfigError, ValueError, csv.Error, ZeroDivisionError):
        return []  # reported when the matrix is read


def _of_the_gym(tree: Tree) -> Tree:
    """Fill in what an expert router takes from its gym: the matrix, and one skill per column."""
    data, skills, router = (tree.get(name, {}) for name in ("data", "skills", "router"))
    expert = router.get("kind") == "expert"
    matrix = router.get("matrix", data.get("expert_matrix")) if expert else None
    if matrix is not None:
        tree = tree | {"router": router | {"matrix": matrix}}
    if skills.get("n_skills") != "per_column":
        return tree
    if not isinstance(matrix, str):
        raise ConfigError(
            "skills.n_skills 'per_column' is the number of columns of an expert router's matrix: "
            "take router.kind: expert, and name a file in router.matrix, or data.expert_matrix"
        )
    first, *_ = read_text(find_file(matrix), ConfigError).split("\n")
    # A header without skills is reported when the matrix is read.
    return tree | {"skills": skills | {"n_skills": max(1, first.count(","))}}


def merge(
    tree: Tree, later: Mapping[str, Any], source: str, sources: Sources, prefix: str = ""
) -> Tree:
    """Return ``tree`` with the values of ``later`` on top.

    Mappings merge key by key. A mapping whose ``kind`` or ``model_type`` differs from the earlier
    one's replaces it: settings of one kind mean nothing to another. The kind itself stays where the
    later one names only another model type. An empty mapping inside a section empties it.

    ``sources`` receives the ``source`` of every dotted key; ``prefix`` is where the trees stand in
    a larger one, with a dot behind.
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
        if not isinstance(before, Mapping) or emptied or _changes_kind(before, value):
            kind = before.get("kind") if isinstance(before, Mapping) and not emptied else None
            before = {} if kind is None else {"kind": kind}
            for old in [known for known in sources if known.startswith(f"{name}.")]:
                if old.removeprefix(f"{name}.") not in before:
                    del sources[old]
        result[key] = merge(dict(before), value, source, sources, f"{name}.")
    return result


def _changes_kind(before: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    common = before.keys() & later.keys() & {"kind", "model_type"}
    return any(later[name] != before[name] for name in common)


def with_value(
    tree: Tree, name: str, value: Any, source: str = "", sources: Sources | None = None
) -> Tree:
    """Return ``tree`` with a setting changed, which has a dotted name."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return merge(tree, value, source, {} if sources is None else sources)


def _override(tree: Tree, text: str, sources: Sources) -> Tree:
    key, equals, value = text.partition("=")
    if not equals or "." not in key or not all(key.split(".")):
        raise ConfigError(f"{COMMAND_LINE} {text}: must have the form section.key=value")
    parsed = yaml12.parse_at(f"{COMMAND_LINE} {text}", value, ConfigError)
    return with_value(tree, key, parsed, COMMAND_LINE, sources)


def _kind_of(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else f"'{value}'"
