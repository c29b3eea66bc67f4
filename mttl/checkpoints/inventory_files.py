"""Where the inventory of a run lies, and its small files: facts, names of tasks, checksums."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mttl.io.errors import CheckpointError, ConfigError
from mttl.io.files import write_text
from mttl.io.reading import file_sha256, read_json
from mttl.io.record import Printable, Record, check

FORMAT_VERSION = 1
# Keys of meta.json: the digests of all files, and the inventory that a task was adapted from.
CHECKSUMS, SOURCE = "sha256", "source"
AGAIN = (
    "Copy the whole folder again from where it was written, or write it again: repeat the training "
    "command with --resume, or the adaptation with --save"
)
_ANOTHER_VERSION = "Load it with the mttl that wrote it, which it names under libraries"


class BackboneFacts(Record):
    """What an inventory notes of its backbone."""

    name: str
    trained: bool
    fingerprint: str
    places: dict[str, str] = Field(default_factory=dict)


class SourceFacts(Record):
    """The inventory that a task was adapted from: its places, and its digest."""

    path: str
    relative: str
    inventory: str


class InventoryFacts(Record):
    """The content of ``meta.json``."""

    format_version: Literal[1]
    backbone: BackboneFacts
    libraries: dict[str, str]
    settings: dict[str, Any]
    source: SourceFacts | None = None
    sha256: dict[str, str]


def inventory_folder(folder: str | Path) -> Path:
    """Return the folder ``skills/`` with a trained inventory: the given one, or one inside it."""
    if (found := find_inventory(Path(folder))) is not None:
        return found
    raise CheckpointError(
        f"'{folder}' holds no trained inventory: it has no meta.json, nor a folder skills/ with "
        "one. Give the folder of a run that has ended; --resume finishes an interrupted one"
    )


def find_inventory(*places: Path) -> Path | None:
    """Return the folder ``skills/`` in the first of some places that has one."""
    candidates = (path for place in places for path in (place / "skills", place))
    return next((path for path in candidates if os.path.lexists(path / "meta.json")), None)


def check_named(source: str | None, adapted: Sequence[str]) -> None:
    """Check that a command that answers was given trained inventories, and at least one."""
    if source is None and not adapted:
        raise ConfigError("name a run with --from RUN, or an adapted task with --adapted DIR")
    for folder in (source, *adapted):
        if folder is not None:
            inventory_folder(folder)


def write_facts(folder: Path, meta: dict[str, Any], tasks: Sequence[str]) -> None:
    """Write the names of tasks, the facts and the checksums of an inventory."""
    write_text(folder / "tasks.json", _json(list(tasks)))
    write_text(folder / "meta.json", _json(meta | {CHECKSUMS: checksums(folder, meta)}))


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``, after all files were compared with its checksums."""
    path = folder / "meta.json"
    meta = read_json(path, CheckpointError)
    noted = check(InventoryFacts, meta, f"'{path}'", CheckpointError, _ANOTHER_VERSION).sha256
    found = checksums(folder, meta)
    for name in sorted(noted.keys() | found.keys()):
        if noted.get(name) != found.get(name):
            known = (folder / name).exists()
            state = "damaged (its checksum is not the one noted)" if known else "missing"
            raise CheckpointError(f"'{folder / name}' is {state}. {AGAIN}")
    return meta


def read_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the tasks in the order of their ids."""
    path = folder / "tasks.json"
    names = read_json(path, CheckpointError)
    return check(tuple[Printable, ...], names, f"'{path}'", CheckpointError, AGAIN)


def checksums(folder: Path, meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of every file of a folder ``skills/``, and of the facts about it."""
    facts = {name: value for name, value in meta.items() if name != CHECKSUMS}
    text = json.dumps(facts, sort_keys=True)
    return _file_sums(folder) | {"meta.json": hashlib.sha256(text.encode()).hexdigest()}


def inventory_digest(skills: Path) -> str:
    """Return a hash of a saved inventory: of its tensors, its tasks and how it was built.

    It does not depend on versions of libraries.
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
