"""Location of a run's inventory, and its small files: facts, task names, checksums."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.files import write_text
from mttl.io.reading import file_sha256, read_json
from mttl.io.record import Printable, check

FORMAT_VERSION = 1
# Keys of meta.json: digests of all files, and the inventory that a task was adapted from.
CHECKSUMS, SOURCE = "sha256", "source"
AGAIN = (
    "Copy the whole folder again from its origin, or write it again: repeat the training command "
    "with --resume, or the adaptation with --save"
)


def inventory_folder(folder: str | Path) -> Path:
    """Return the ``skills/`` folder of a trained inventory: the given folder, or one inside it."""
    if (found := find_inventory(Path(folder))) is not None:
        return found
    lacks = "has no trained skills (no meta.json, also not in skills/)"
    raise CheckpointError(
        f"'{folder}' {lacks if os.path.lexists(folder) else 'does not exist'}. Name the folder of "
        "a finished run; finish an interrupted one with --resume"
    )


def find_inventory(*places: Path) -> Path | None:
    """Return the ``skills/`` folder in the first place that has one."""
    candidates = (path for place in places for path in (place / "skills", place))
    return next((path for path in candidates if os.path.lexists(path / "meta.json")), None)


def check_named(source: str | None, adapted: Sequence[str]) -> None:
    """Raise an error unless at least one inventory is named, and all exist."""
    if source is None and not adapted:
        raise ConfigError("name a run with --from RUN, or an adapted task with --adapted DIR")
    for folder in (source, *adapted):
        if folder is not None:
            inventory_folder(folder)


def is_adapted(folder: str | Path) -> bool:
    """Return whether a folder has an adapted task instead of a run."""
    return SOURCE in read_json(inventory_folder(folder) / "meta.json", CheckpointError, dict)


def write_facts(folder: Path, meta: dict[str, Any], tasks: Sequence[str]) -> None:
    """Write task names, facts and checksums of an inventory."""
    write_text(folder / "tasks.json", _json(list(tasks)))
    write_text(folder / "meta.json", _json(meta | {CHECKSUMS: checksums(folder, meta)}))


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``, after verifying all checksums."""
    path = folder / "meta.json"
    meta = read_json(path, CheckpointError, dict)
    noted, version = meta.get(CHECKSUMS), meta.get("format_version")
    complete = isinstance(noted, dict) and meta.keys() >= {"backbone", "libraries", "settings"}
    if version != FORMAT_VERSION or not complete:
        raise CheckpointError(
            f"'{path}' has no facts of format {FORMAT_VERSION}. Use the version of mttl that wrote "
            "it (see libraries in the file), or copy it again"
        )
    found = checksums(folder, meta)
    for name in sorted(noted.keys() | found.keys()):
        if noted.get(name) != found.get(name):
            known = (folder / name).exists()
            state = "damaged (its checksum has changed)" if known else "missing"
            raise CheckpointError(f"'{folder / name}' is {state}. {AGAIN}")
    return meta


def read_names(folder: Path) -> tuple[str, ...]:
    """Return the task names in the order of their ids."""
    path = folder / "tasks.json"
    names = read_json(path, CheckpointError)
    return check(tuple[Printable, ...], names, f"'{path}'", CheckpointError, AGAIN)


def checksums(folder: Path, meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of every file in a ``skills/`` folder, and of its facts."""
    facts = {name: value for name, value in meta.items() if name != CHECKSUMS}
    text = json.dumps(facts, sort_keys=True)
    return _file_sums(folder) | {"meta.json": hashlib.sha256(text.encode()).hexdigest()}


def inventory_digest(skills: Path) -> str:
    """Return a hash of a saved inventory: its tensors, tasks and settings.

    It does not depend on library versions.
    """
    digest = hashlib.sha256()
    for name, own in _file_sums(skills).items():
        digest.update(f"{name} {own}".encode())
    meta = read_json(skills / "meta.json", CheckpointError, dict)
    built = [meta["backbone"]["fingerprint"], meta["settings"]]
    if SOURCE in meta:
        built.append(meta[SOURCE]["inventory"])
    digest.update(json.dumps(built, sort_keys=True).encode())
    return digest.hexdigest()


def _file_sums(folder: Path) -> dict[str, str]:
    paths = sorted([*folder.glob("*.safetensors"), folder / "tasks.json"])
    return {path.name: file_sha256(path, CheckpointError) for path in paths}
