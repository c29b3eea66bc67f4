"""The files of a saved inventory, one by one: facts about it, checksums, tensors that are checked.

What makes a whole of them is `mttl.checkpoints.saved_inventory`.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mttl.errors import CheckpointError
from mttl.io.files import write_text
from mttl.io.reading import check_name, file_sha256, read_json, reason, require_file
from mttl.version import VERSION

FORMAT_VERSION = 1
# Of folders that hold only what differs from another.
ADAPTED_VERSION = 2
# Where meta.json keeps the digests of all files.
CHECKSUMS = "sha256"
# Where it keeps what an adapted task was adapted from.
SOURCE = "source"
LIBRARIES = ("torch", "transformers", "pytorch-lightning")


def libraries() -> dict[str, str]:
    """Return the versions of what writes inventories."""
    return {"mttl": VERSION} | {name: _version(name) for name in LIBRARIES}


def write_facts(folder: Path, meta: dict[str, Any], tasks: Sequence[str]) -> None:
    """Write what stands beside the tensors of an inventory, checksums included."""
    _write_json(folder / "tasks.json", list(tasks))
    _write_json(folder / "meta.json", meta | {CHECKSUMS: checksums(folder, meta)})


def _write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``meta.json`` holds, after all files were compared with it.

    Raises:
        CheckpointError: If a file is missing or damaged, or the format is not this version's.
    """
    meta = _read_json(folder / "meta.json", dict)
    version = meta.get("format_version")
    if version not in (FORMAT_VERSION, ADAPTED_VERSION):
        writer = meta.get("libraries", {}).get("mttl", "unknown")
        raise CheckpointError(
            f"'{folder}' has format version {version}; this mttl reads {FORMAT_VERSION} and "
            f"{ADAPTED_VERSION}. Load it with the mttl that wrote it ({writer})"
        )
    check_checksums(folder, meta)
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
        meta: What its ``meta.json`` holds, or will.
    """
    facts = {name: value for name, value in meta.items() if name != CHECKSUMS}
    text = json.dumps(facts, sort_keys=True)
    return _file_sums(folder) | {"meta.json": hashlib.sha256(text.encode()).hexdigest()}


def check_checksums(folder: Path, meta: Mapping[str, Any]) -> None:
    """Compare the files of an inventory with what was noted when they were written.

    Args:
        folder: The folder ``skills/``.
        meta: What its ``meta.json`` holds.

    Raises:
        CheckpointError: If a file is another, or missing.
    """
    noted, found = meta.get(CHECKSUMS, {"meta.json": ""}), checksums(folder, meta)
    other = [name for name in sorted(noted) if noted[name] != found.get(name)]
    more = [name for name in sorted(found) if name not in noted]
    if other or more:
        path = folder / (other + more)[0]
        state = (
            "missing"
            if not os.path.lexists(path)
            else "damaged (its checksum is not the one noted)"
        )
        raise CheckpointError(_unreadable(path, state))


def inventory_digest(skills: Path) -> str:
    """Return a hash of a saved inventory: of its tensors, its tasks and how it was built.

    Versions of libraries have no part in it, so a run that is resumed after its end keeps it.
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
