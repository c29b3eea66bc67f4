"""The files of a saved inventory: settings, checksums and tensors."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.io.files import write_text
from mttl.io.reading import check_name, file_sha256, read_json, reason, require_file
from mttl.io.record import Record, check
from mttl.runtime.version import VERSION

FORMAT_VERSION = 1
# Version of folders that hold only the differences from another.
ADAPTED_VERSION = 2
# Key of the digests of all files in meta.json.
CHECKSUMS = "sha256"
# Key of the inventory that a task was adapted from.
SOURCE = "source"
_ANOTHER_VERSION = "Load it with the mttl that wrote it, which it names under libraries"
LIBRARIES = ("torch", "transformers", "pytorch-lightning")


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

    format_version: Literal[1, 2]
    backbone: BackboneFacts
    libraries: dict[str, str]
    settings: dict[str, Any]
    source: SourceFacts | None = None
    sha256: dict[str, str]


def libraries() -> dict[str, str]:
    """Return the versions of what writes inventories."""
    return {"mttl": VERSION} | {name: _version(name) for name in LIBRARIES}


def write_facts(folder: Path, meta: dict[str, Any], tasks: Sequence[str]) -> None:
    """Write the names of tasks, the facts and the checksums of an inventory."""
    _write_json(folder / "tasks.json", list(tasks))
    _write_json(folder / "meta.json", meta | {CHECKSUMS: checksums(folder, meta)})


def _write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``, after all files were compared with it.

    Raises:
        CheckpointError: If a file is missing or damaged, or the format is not this version's.
    """
    meta = _read_json(folder / "meta.json", dict)
    if meta.get("format_version") in (FORMAT_VERSION, ADAPTED_VERSION):
        check_checksums(folder, meta)
    check(InventoryFacts, meta, f"'{folder / 'meta.json'}'", CheckpointError, _ANOTHER_VERSION)
    return meta


def read_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the tasks in the order of their ids.

    Raises:
        CheckpointError: If the file is missing or damaged, or a name is not allowed.
    """
    place = f"'{folder / 'tasks.json'}': a task's name"
    names = _read_json(folder / "tasks.json", list)
    return tuple(check_name(name, place, CheckpointError) for name in names)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file.

    Raises:
        CheckpointError: If it is missing or damaged, or a number is not finite.
    """
    require_file(path, CheckpointError)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(_unreadable(path, f"damaged ({reason(error)})")) from error
    strange = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if strange:
        raise CheckpointError(
            _unreadable(path, f"damaged ('{strange[0]}' holds numbers that are not finite)")
        )
    return tensors


def checksums(folder: Path, meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of every file of an inventory, and of the facts about it.

    Args:
        folder: The folder ``skills/``.
        meta: Content of its ``meta.json``.
    """
    facts = {name: value for name, value in meta.items() if name != CHECKSUMS}
    text = json.dumps(facts, sort_keys=True)
    return _file_sums(folder) | {"meta.json": hashlib.sha256(text.encode()).hexdigest()}


def check_checksums(folder: Path, meta: Mapping[str, Any]) -> None:
    """Compare the files of an inventory with their checksums.

    Args:
        folder: The folder ``skills/``.
        meta: Content of its ``meta.json``.

    Raises:
        CheckpointError: If a file differs, or is missing.
    """
    noted, found = meta.get(CHECKSUMS, {"meta.json": ""}), checksums(folder, meta)
    for name in sorted(noted.keys() | found.keys()):
        if noted.get(name) != found.get(name):
            damaged = "damaged (its checksum is not the one noted)"
            state = damaged if (folder / name).exists() else "missing"
            raise CheckpointError(_unreadable(folder / name, state))


def inventory_digest(skills: Path) -> str:
    """Return a hash of a saved inventory: of its tensors, its tasks and how it was built.

    It does not depend on versions of libraries.
    """
    digest = hashlib.sha256()
    for name, own in _file_sums(skills).items():
        digest.update(f"{name} {own}".encode())
    meta = _read_json(skills / "meta.json", dict)
    built = [meta["backbone"]["fingerprint"], meta["settings"]]
    if SOURCE in meta:
        built.append(meta[SOURCE]["inventory"])
    digest.update(json.dumps(built, sort_keys=True).encode())
    return digest.hexdigest()


def _file_sums(folder: Path) -> dict[str, str]:
    paths = sorted([*folder.glob("*.safetensors"), folder / "tasks.json"])
    return {path.name: file_sha256(path, CheckpointError) for path in paths}


def _read_json(path: Path, kind: type) -> Any:
    try:
        return read_json(path, CheckpointError, kind)
    except CheckpointError as error:
        raise CheckpointError(_unreadable(path, f"damaged ({error})")) from error


def _unreadable(path: Path, state: str) -> str:
    return (
        f"'{path}' is {state}. Copy the whole folder again from where it was written, or write it "
        "again: repeat the training command with --resume, or the adaptation with --save"
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
