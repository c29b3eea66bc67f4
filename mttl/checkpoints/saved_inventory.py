"""The trained inventory on disk: what later work starts from.

A folder ``skills/`` holds

| file | content |
|---|---|
| ``skills.safetensors`` | the skills of every layer, ``<path of the layer>.<parameter>`` |
| ``router.safetensors`` | parameters and buffers of the router |
| ``backbone.safetensors`` | the backbone's parameters, only where it was trained |
| ``tasks.json`` | names of the tasks in the order of their ids |
| ``meta.json`` | format version, the backbone's fingerprint, libraries, settings, checksums |

Layers whose tokens choose experts have ``<path>.experts.<parameter>`` and, for the one that is
always on, ``<path>.shared.<parameter>`` among the skills, and ``tokens.<path>.<parameter>`` among
what the routers have.

The folder of an adapted task holds what differs from the inventory that it was adapted from, and in
``meta.json`` where that is, and its digest; it reads as the whole.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from mttl.checkpoints.inventory_files import (
    AGAIN,
    FORMAT_VERSION,
    SOURCE,
    find_inventory,
    inventory_digest,
    inventory_folder,
    read_facts,
    read_names,
    write_facts,
)
from mttl.checkpoints.model_tensors import (
    Model,
    fingerprint,
    own_parameters,
    router_tensors,
    skill_tensors,
)
from mttl.checkpoints.whole_tensors import for_first, is_first
from mttl.io.errors import CheckpointError, grouped
from mttl.io.files import new_folder
from mttl.io.safetensors_file import read_tensors, write_tensors
from mttl.runtime.version import VERSION
from mttl.skills.attention import AttendedInventory
from mttl.skills.skilled_model import SkilledModel

LIBRARIES = ("torch", "transformers", "pytorch-lightning")  # whose versions are noted


@dataclass(frozen=True)
class SavedInventory:
    """A folder ``skills/`` as read from disk."""

    folder: Path
    meta: dict[str, Any]
    tasks: tuple[str, ...]
    skills: dict[str, Tensor]
    router: dict[str, Tensor]
    backbone: dict[str, Tensor] | None

    @property
    def places(self) -> dict[str, str]:
        """Where folders of the backbone are, by the setting that names them."""
        noted = self.meta["backbone"].get("places", {})
        return {key: str((self.folder.parent / place).resolve()) for key, place in noted.items()}

    def require_backbone(
        self,
        parameters: Mapping[str, Tensor],
        place: str = "this one",
        values_of: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Refuse the parameters of another backbone; of one that was trained, other shapes alone.

        What was trained is kept: its values are not those of the start. See `fingerprint`.
        """
        values, noted = self.backbone is None, self.meta["backbone"]
        found = fingerprint(parameters, values=values, values_of=values_of if values else None)
        if found != noted["fingerprint"]:
            raise CheckpointError(
                f"'{self.folder}' was trained on the backbone '{noted['name']}' (fingerprint "
                f"{noted['fingerprint'][:12]}), not on {place} ({found[:12]}). Its weights must be "
                "the same ones"
            )


def save_inventory(
    folder: str | Path,
    model: Model,
    tasks: Sequence[str],
    *,
    backbone_name: str,
    backbone_trained: bool,
    settings: Mapping[str, Any],
    places: Mapping[str, str] | None = None,
) -> None:
    """Write a folder ``skills/``; the processes of a sharded training must call it together.

    An earlier one is replaced once the new one is complete. Of a policy the common parameters are
    the backbone. The settings are what is needed to build the same model again, as JSON; ``places``
    are the folders that the backbone's name, by setting, wherever they are read.
    """
    parameters = own_parameters(model)
    facts = _facts(parameters, backbone_name, backbone_trained, places or {}, settings)
    tensors = [skill_tensors(model), router_tensors(model), parameters if backbone_trained else {}]
    skills, router, backbone = (
        {name: for_first(tensor) for name, tensor in part.items()} for part in tensors
    )
    if is_first():
        parts = skills, router, backbone if backbone_trained else None
        write_inventory(SavedInventory(Path(folder), facts, tuple(tasks), *parts))


def _facts(
    parameters: Mapping[str, Tensor],
    name: str,
    trained: bool,
    places: Mapping[str, str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    backbone = {
        "name": name,
        "trained": trained,
        "fingerprint": fingerprint(parameters, values=not trained),
        "places": dict(places),
    }
    libraries = {"mttl": VERSION} | {name: version(name) for name in LIBRARIES}
    facts = {"format_version": FORMAT_VERSION, "backbone": backbone}
    return facts | {"libraries": libraries, "settings": dict(settings)}


def write_inventory(inventory: SavedInventory) -> None:
    """Write an inventory to its folder, whole or not at all; an earlier one there is replaced."""
    with new_folder(inventory.folder, replace=True) as new:
        write_tensors(new / "skills.safetensors", inventory.skills)
        write_tensors(new / "router.safetensors", inventory.router)
        if inventory.backbone is not None:
            write_tensors(new / "backbone.safetensors", inventory.backbone)
        write_facts(new, inventory.meta, inventory.tasks)


def save_adapted_inventory(
    folder: Path,
    model: SkilledModel,
    task: str,
    source: SavedInventory,
    *,
    place: Path,
    backbone_trained: bool,
    settings: Mapping[str, Any],
) -> None:
    """Write what a model adapted to one task has besides the inventory that it was adapted from.

    The folder is part of one that is written whole, and will be at ``place`` in the end.
    """
    trained = backbone_trained or source.backbone is not None
    parameters = own_parameters(model)
    name = source.meta["backbone"]["name"]
    origin = source.folder.resolve()
    facts = _facts(parameters, name, trained, source.places, settings)
    facts[SOURCE] = {
        "path": str(origin),
        "relative": os.path.relpath(origin, place.resolve()),
        "inventory": inventory_digest(source.folder),
    }
    folder.mkdir(parents=True)
    write_tensors(folder / "router.safetensors", router_tensors(model))
    parts = {"skills": (skill_tensors(model), source.skills)}
    if backbone_trained:
        parts["backbone"] = (parameters, source.backbone or {})
    for name, (now, before) in parts.items():
        changed = {
            key: value
            for key, value in now.items()
            if key not in before or not torch.equal(value.cpu(), before[key].to(value.dtype))
        }
        if changed:
            write_tensors(folder / f"{name}.safetensors", changed)
    write_facts(folder, facts, [task])


def read_inventory(folder: str | Path, source: str | Path | None = None) -> SavedInventory:
    """Read a folder ``skills/``, or the run folder around it.

    That of an adapted task is read together with what it was adapted from, which is in ``source``
    now if it was moved.

    Raises:
        CheckpointError: If a file is missing, damaged or of another version, or what a task was
            adapted from is missing or another.
    """
    folder = inventory_folder(folder)
    meta = read_facts(folder)
    if source is not None and SOURCE not in meta:
        raise CheckpointError(f"'{folder}' is a run, not an adapted task: leave the other run out")
    base = _read_source(folder, meta[SOURCE], source) if SOURCE in meta else None
    skills = _read_part(folder, "skills", base and base.skills)
    router, backbone = _read_part(folder, "router", None), None
    if meta["backbone"]["trained"]:
        backbone = _read_part(folder, "backbone", base and (base.backbone or {}))
    return SavedInventory(folder, meta, read_names(folder), skills, router, backbone)


def _read_part(folder: Path, name: str, below: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Read tensors; of an adapted task, what differs goes over those below, if anything does."""
    path = folder / f"{name}.safetensors"
    if below is not None and not path.exists():
        return below
    return (below or {}) | read_tensors(path, AGAIN)


def _read_source(
    folder: Path, origin: Mapping[str, str], given: str | Path | None
) -> SavedInventory:
    """Read the inventory that a task was adapted from."""
    places = [folder / origin["relative"], Path(origin["path"])] if given is None else [Path(given)]
    skills = find_inventory(*places)
    if skills is None:
        raise CheckpointError(
            f"'{folder}' was adapted from the inventory in '{given or origin['path']}', which is "
            "not there. Name the run with --from RUN (run= in a call), or copy it there"
        )
    digest = inventory_digest(skills)
    if digest != origin["inventory"]:
        raise CheckpointError(
            f"'{folder}' was adapted from another inventory ({origin['inventory'][:12]}) than the "
            f"one in '{skills}' ({digest[:12]}): of another run, or of this one before it was "
            "trained on. Name the right run, or adapt again"
        )
    return read_inventory(skills)


def load_into(model: Model, saved: SavedInventory) -> None:
    """Copy a saved inventory into a model built with the same settings, all or nothing.

    Raises:
        CheckpointError: If the backbone is another one, or tensors are missing, unexpected or of
            another shape; the message lists them by cause.
    """
    _load(model, saved, {"skills": skill_tensors(model), "router": router_tensors(model)})


def load_skills(model: SkilledModel, saved: SavedInventory) -> None:
    """Copy the skills of an earlier run, and its backbone, into a model; its router is left out.

    It has inventories of the run's kinds, or attention over such.
    """
    skills = {
        f"{path}.{name}": tensor.detach()
        for path, layer in model.skilled_layers().items()
        if isinstance(layer.inventory, AttendedInventory)
        for name, tensor in layer.inventory.skills.state_dict().items()
    }
    _load(model, saved, {"skills": skills or skill_tensors(model)})


def _load(model: Model, saved: SavedInventory, targets: dict[str, dict[str, Tensor]]) -> None:
    parameters = own_parameters(model)
    saved.require_backbone(parameters)
    copy_saved(saved, targets if saved.backbone is None else targets | {"backbone": parameters})


def copy_saved(saved: SavedInventory, targets: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Copy tensors of an inventory into those of a model, all or none.

    The ``targets`` are those of ``"skills"``, ``"router"`` and ``"backbone"`` by name, or of some.
    """
    problems = []
    for part, tensors in targets.items():
        source = getattr(saved, part)
        causes = {
            "missing": sorted(tensors.keys() - source.keys()),
            "unexpected": sorted(source.keys() - tensors.keys()),
            "of another shape": sorted(other_shapes(source, tensors)),
        }
        problems += [f"{part}, {line}" for line in grouped(causes)]
    if problems:
        raise CheckpointError(f"'{saved.folder}' does not fit the model:\n" + "\n".join(problems))
    with torch.no_grad():
        for part, tensors in targets.items():
            for name, tensor in tensors.items():
                tensor.copy_(getattr(saved, part)[name])


def other_shapes(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Return the tensors that have other shapes than wanted, with both."""
    shapes = {
        name: (tuple(found[name].shape), tuple(wanted[name].shape))
        for name in found
        if name in wanted
    }
    return [f"{name} {one} instead of {two}" for name, (one, two) in shapes.items() if one != two]


def count_saved(path: Path, beginning: str = "") -> int:
    """Return the number of parameters in a safetensors file, from its header alone.

    Single numbers are settings, such as a temperature, whole numbers are places, such as those of
    sparse skills, and `start_…` is what skills began with: none are counted, nor are parameters
    whose names do not have the ``beginning``.
    """
    with safe_open(path, framework="pt") as file:
        entries = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = [
            entry.get_shape()
            for name, entry in entries.items()
            if name.startswith(beginning)
            and not name.rpartition(".")[2].startswith("start_")
            and entry.get_dtype().startswith(("F", "BF"))
        ]
    return sum(math.prod(shape) for shape in shapes if shape)
