"""The trained inventory on disk: what later work starts from.

A folder ``skills/`` holds

| file | content |
|---|---|
| ``skills.safetensors`` | the skills of every layer, ``<path of the layer>.<parameter>`` |
| ``router.safetensors`` | parameters and buffers of the router |
| ``backbone.safetensors`` | the backbone's parameters, only where it was trained |
| ``tasks.json`` | names of the tasks in the order of their ids |
| ``meta.json`` | format version, backbone and its fingerprint, library versions, settings |

Layers whose tokens choose experts have ``<path>.experts.<parameter>`` and, for the one that is
always on, ``<path>.shared.<parameter>`` among the skills, and ``tokens.<path>.<parameter>`` among
what the routers have.
"""

import importlib.metadata
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mttl.errors import CheckpointError
from mttl.files import write_atomic, write_text
from mttl.inventory_folder import inventory_folder
from mttl.model_tensors import Model, fingerprint, own_parameters, router_tensors, skill_tensors
from mttl.skills.attention import AttendedInventory
from mttl.skills.skilled_model import SkilledModel

FORMAT_VERSION = 1
LIBRARIES = ("mttl", "torch", "transformers", "pytorch-lightning")


@dataclass(frozen=True)
class SavedInventory:
    """A folder ``skills/`` as read from disk."""

    folder: Path
    meta: dict[str, Any]
    tasks: tuple[str, ...]
    skills: dict[str, Tensor]
    router: dict[str, Tensor]
    backbone: dict[str, Tensor] | None


def save_inventory(
    folder: str | Path,
    model: Model,
    tasks: Sequence[str],
    *,
    backbone_name: str,
    backbone_trained: bool,
    settings: Mapping[str, Any],
) -> None:
    """Write a folder ``skills/``, whole or not at all.

    Args:
        folder: Where; an earlier one is replaced once the new one is complete.
        model: Backbone, skills and router; of a policy the common parameters are the backbone.
        tasks: Names of the tasks in the order of their ids.
        backbone_name: What the backbone is called, for people.
        backbone_trained: Whether its weights changed and have to be kept.
        settings: What is needed to build the same model again; must be JSON.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    parameters = own_parameters(model)
    meta = {
        "format_version": FORMAT_VERSION,
        "backbone": {
            "name": backbone_name,
            "trained": backbone_trained,
            "fingerprint": fingerprint(parameters, values=not backbone_trained),
        },
        "libraries": {name: _version(name) for name in LIBRARIES},
        "settings": dict(settings),
    }
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    new, earlier = temporary / "new", temporary / "earlier"
    try:
        new.mkdir()
        _write_tensors(new / "skills.safetensors", skill_tensors(model))
        _write_tensors(new / "router.safetensors", router_tensors(model))
        if backbone_trained:
            _write_tensors(new / "backbone.safetensors", parameters)
        _write_json(new / "tasks.json", list(tasks))
        _write_json(new / "meta.json", meta)
        if folder.exists():
            folder.replace(earlier)
        new.replace(folder)
    finally:
        if earlier.exists() and not folder.exists():
            earlier.replace(folder)
        shutil.rmtree(temporary, ignore_errors=True)


def read_inventory(folder: str | Path) -> SavedInventory:
    """Read a folder ``skills/``, or the run folder around it.

    Raises:
        CheckpointError: If it is no such folder, a file is missing or damaged, or the format is
            not this version's.
    """
    folder = inventory_folder(folder)
    meta = _read_json(folder / "meta.json", dict)
    version = meta.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"'{folder}' has format version {version}; this mttl reads {FORMAT_VERSION}. Load it "
            f"with the mttl that wrote it ({meta.get('libraries', {}).get('mttl', 'unknown')})"
        )
    lacking = sorted({"backbone", "libraries", "settings"} - meta.keys())
    if lacking:
        raise CheckpointError(
            _unreadable(folder / "meta.json", f"damaged (it lacks {', '.join(lacking)})")
        )
    backbone = folder / "backbone.safetensors"
    return SavedInventory(
        folder=folder,
        meta=meta,
        tasks=tuple(_read_json(folder / "tasks.json", list)),
        skills=_read_tensors(folder / "skills.safetensors"),
        router=_read_tensors(folder / "router.safetensors"),
        backbone=_read_tensors(backbone) if meta["backbone"]["trained"] else None,
    )


def load_into(model: Model, saved: SavedInventory) -> None:
    """Copy a saved inventory into a model built with the same settings.

    Raises:
        CheckpointError: If the backbone is another one, or tensors are missing, unexpected or of
            another shape; nothing is copied then, and the message lists them by cause.
    """
    targets = {"skills": skill_tensors(model), "router": router_tensors(model)}
    _load(model, saved, targets)


def load_frozen_skills(model: SkilledModel, saved: SavedInventory) -> None:
    """Copy the skills of an earlier run below the attention of a model, and its backbone.

    Args:
        model: A model whose inventories are `AttendedInventory`.
        saved: A run whose inventories are the skills in it; its router is left out.
    """
    skills = {
        f"{path}.{name}": tensor.detach()
        for path, layer in model.skilled_layers().items()
        if isinstance(layer.inventory, AttendedInventory)
        for name, tensor in layer.inventory.skills.state_dict().items()
    }
    _load(model, saved, {"skills": skills})


def _load(model: Model, saved: SavedInventory, targets: dict[str, dict[str, Tensor]]) -> None:
    parameters = own_parameters(model)
    trained = saved.backbone is not None
    found = fingerprint(parameters, values=not trained)
    expected = saved.meta["backbone"]["fingerprint"]
    if found != expected:
        raise CheckpointError(
            f"'{saved.folder}' was trained on the backbone '{saved.meta['backbone']['name']}' "
            f"(fingerprint {expected[:12]}), not on this one ({found[:12]}). Its weights "
            "must be the same ones"
        )
    sources = {"skills": saved.skills, "router": saved.router}
    if saved.backbone is not None:
        targets["backbone"] = parameters
        sources["backbone"] = saved.backbone
    problems = [
        problem for part in targets for problem in _compare(part, targets[part], sources[part])
    ]
    if problems:
        raise CheckpointError(f"'{saved.folder}' does not fit the model:\n" + "\n".join(problems))
    with torch.no_grad():
        for part, tensors in targets.items():
            for name, tensor in tensors.items():
                tensor.copy_(sources[part][name])


def count_saved(path: Path, beginning: str = "") -> int:
    """Return the number of parameters in a safetensors file, from its header alone.

    Single numbers are settings, such as a temperature, and whole numbers are places, such as those
    of sparse skills; neither are counted.

    Args:
        path: The file.
        beginning: Count those only whose names begin so.
    """
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = [
        entry["shape"]
        for name, entry in header.items()
        if name != "__metadata__"
        and name.startswith(beginning)
        and entry["dtype"].startswith(("F", "BF"))
    ]
    return sum(math.prod(shape) for shape in shapes if shape)


def _compare(part: str, targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> list[str]:
    missing = sorted(set(targets) - set(sources))
    unexpected = sorted(set(sources) - set(targets))
    shapes = [
        f"{name} {tuple(sources[name].shape)} instead of {tuple(targets[name].shape)}"
        for name in sorted(set(targets) & set(sources))
        if targets[name].shape != sources[name].shape
    ]
    return [
        f"{part}, {cause}: {_some(names)}"
        for cause, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", shapes),
        )
        if names
    ]


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, lambda temporary: save_file(contiguous, temporary))


def _write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _read_json(path: Path, kind: type) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(_unreadable(path, "missing")) from error
    except ValueError as error:
        raise CheckpointError(_unreadable(path, f"damaged ({error})")) from error
    if not isinstance(value, kind):
        raise CheckpointError(_unreadable(path, f"damaged (it holds no {kind.__name__})"))
    return value


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(_unreadable(path, "missing")) from error
    except SafetensorError as error:
        raise CheckpointError(_unreadable(path, f"damaged ({error})")) from error


def _unreadable(path: Path, state: str) -> str:
    return (
        f"'{path}' is {state}. Copy the whole folder again from where it was written, or write it "
        "again: repeat the training command with --resume"
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
