"""From names of files and overrides to a validated configuration."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mttl.config.config_errors import format_errors
from mttl.config.merge_tree import Sources, Tree, merge, nested
from mttl.config.plugin_section import IMPORT
from mttl.config.schema import Config
from mttl.config.section import Section
from mttl.config.worlds import WORLDS, world_of
from mttl.io import yaml12
from mttl.io.errors import ConfigError, nearest
from mttl.io.files import shipped_folder
from mttl.io.reading import read_text
from mttl.plugins.describe import notes_of

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
    if run is not None and not _is_whole(tree):
        path = Path(run) / "config.yaml"
        if not path.is_file():
            raise ConfigError(f"'{run}' has no config.yaml: name a configuration with -c")
        tree, sources, paths = _join([str(path), *listed])
    elif not listed:
        find_file("")
    for text in overrides:
        tree = _override(tree, text, sources)
    tree = _of_the_gym(tree)
    run = tree.get("run", {})
    if isinstance(run, dict):
        tree = {**tree, "run": {"name": "-".join(path.stem for path in paths), **run}}
    world = next((world for world in WORLDS if world.section in tree), WORLDS[-1])
    schema = world.schema
    try:
        config = schema.model_validate(tree, context=plugins)
    except ValidationError as error:
        found = format_errors(error, tree, sources, schema)
        sections = schema.model_fields.items()
        absent = [name for name, field in sections if field.is_required() and name not in tree]
        if len(absent) > 1:
            found += f"\nName a whole configuration first, as {world.whole}+{'+'.join(listed)}"
        raise ConfigError(found) from None
    if isinstance(config, Config) and config.data.prefix == "auto" and not as_written:
        config = _with_prefix(config)
    return config


def _is_whole(tree: Tree) -> bool:
    """Return whether a tree has all sections that a configuration of some world needs."""
    return any(
        all(
            name in tree for name, field in world.schema.model_fields.items() if field.is_required()
        )
        for world in WORLDS
    )


def find_file(name: str, suffix: str = "", *, setting: str = "") -> Path:
    """Return the path of a file: as given, under ``configs/`` here, or as it is shipped.

    Args:
        name: What the user wrote.
        suffix: May be left out of the name.
        setting: Which names it, for messages; none where the command line lists files.

    Raises:
        ConfigError: If there is none; the message lists near names.
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
    if Path(name).is_absolute():
        raise ConfigError(missing)
    known = {
        str(path.relative_to(place))
        for place in places[1:]
        for path in place.rglob("*")
        if path.is_file()
    }
    like = nearest(name, sorted(known))
    raise ConfigError(f"{missing} here, nor in {CONFIGS}/, nor in {folder}.{like}")


def resolve_path(name: str, setting: str) -> Path:
    """Return the path of a file that a setting names, looked up as `find_file` does."""
    return find_file(name, setting=setting)


def resolve_folder(name: str) -> Path:
    """Return a folder that a setting names: as given, or as it is shipped."""
    path, shipped = Path(name), shipped_folder() / name
    return shipped if not os.path.exists(path) and os.path.isdir(shipped) else path


def dump_config(config: Section) -> str:
    """Return the configuration as YAML that `load_config` reads back to an equal one."""
    sections = config.model_dump(mode="json")
    settings = {name: section for name, section in sections.items() if section is not None}
    return yaml12.dump(settings)


def read_yaml(path: Path) -> Any:
    """Read a YAML file; its mistakes are errors of the configuration."""
    return yaml12.read_yaml(path, ConfigError)


def _read(path: Path) -> Tree:
    tree = read_yaml(path)
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
    if not (isinstance(data, dict) and isinstance(skills, dict) and isinstance(router, dict)):
        return tree
    expert = router.get("kind") == "expert"
    matrix = router.get("matrix", data.get("expert_matrix")) if expert else None
    if matrix is not None:
        tree = tree | {"router": router | {"matrix": matrix}}
    if skills.get("n_skills") != "per_column":
        return tree
    if not isinstance(matrix, str):
        raise ConfigError(
            "skills.n_skills 'per_column' is the number of columns of an expert router's matrix: "
            "take router.kind: expert, and name a file in router.matrix, or in data.expert_matrix "
            "for all that use the gym"
        )
    first, *_ = read_text(find_file(matrix), ConfigError).split("\n")
    # A header without skills is reported when the matrix is read.
    return tree | {"skills": skills | {"n_skills": max(1, first.count(","))}}


def _override(tree: Tree, text: str, sources: Sources) -> Tree:
    key, equals, value = text.partition("=")
    if not equals or "." not in key or not all(key.split(".")):
        raise ConfigError(f"{COMMAND_LINE} {text}: must have the form section.key=value")
    try:
        parsed = yaml12.parse(value)
    except yaml12.YAMLError as error:
        raise ConfigError(f"{COMMAND_LINE} {text}: {yaml12.problem(error)}") from error
    return merge(tree, nested(key, parsed), COMMAND_LINE, sources)


def _kind_of(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else f"'{value}'"
