"""Trained inventory on disk; `docs/reference/run_folder.md` lists the files of ``skills/``.

Skills are named ``<path of the layer>.<parameter>``. Mixture-of-experts layers have
``<path>.experts.<parameter>`` and, for a shared expert, ``<path>.shared.<parameter>`` among the
skills, and ``tokens.<path>.<parameter>`` in the router's file.

The folder of an adapted task has only the differences from its source inventory, with the path and
digest of the source in ``meta.json``; it is read as a complete inventory.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    head_tensors,
    own_parameters,
    router_tensors,
    skill_tensors,
)
from mttl.checkpoints.whole_tensors import for_first
from mttl.io.errors import CheckpointError, grouped
from mttl.io.files import new_folder
from mttl.io.safetensors_file import read_tensors, write_tensors
from mttl.runtime.processes import rank
from mttl.runtime.version import VERSION
from mttl.skills.attention import AttendedInventory
from mttl.skills.skilled_model import SkilledModel

LIBRARIES = ("torch", "transformers", "pytorch-lightning")  # recorded versions


@dataclass(frozen=True)
class SavedInventory:
    """Content of a ``skills/`` folder."""

    folder: Path
    meta: dict[str, Any]
    tasks: tuple[str, ...]
    skills: dict[str, Tensor]
    router: dict[str, Tensor]
    backbone: dict[str, Tensor] | None
    heads: dict[str, Tensor] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        """Folders of the backbone by the setting that names them."""
        noted = self.meta["backbone"].get("places", {})
        return {key: str((self.folder.parent / place).resolve()) for key, place in noted.items()}

    def require_backbone(
        self,
        parameters: Mapping[str, Tensor],
        place: str = "this one",
        values_of: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Raise a `CheckpointError` if parameters belong to another backbone.

        If the backbone was trained, only shapes are compared. See `fingerprint`.
        """
        values, noted = self.backbone is None, self.meta["backbone"]
        found = fingerprint(parameters, values=values, values_of=values_of if values else None)
        if found != noted["fingerprint"]:
            raise CheckpointError(
                f"'{self.folder}' was trained on the backbone '{noted['name']}' (fingerprint "
                f"{noted['fingerprint'][:12]}), but {place} has the fingerprint {found[:12]}. Use "
                "the same weights"
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
    """Write a ``skills/`` folder; all processes of a sharded training must call it.

    An existing folder is replaced atomically. The common parameters of a policy are stored as the
    backbone. ``settings`` are the JSON settings for rebuilding the model; ``places`` are the
    backbone's folders by setting.
    """
    parameters = own_parameters(model)
    facts = _facts(parameters, backbone_name, backbone_trained, places or {}, settings)
    tensors = [skill_tensors(model), router_tensors(model), parameters if backbone_trained else {}]
    skills, router, backbone = (
        {name: for_first(tensor) for name, tensor in part.items()} for part in tensors
    )
    if rank() == 0:
        parts = skills, router, backbone if backbone_trained else None, head_tensors(model)
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
    """Write an inventory to its folder atomically, replacing an existing one."""
    with new_folder(inventory.folder, replace=True) as new:
        write_tensors(new / "skills.safetensors", inventory.skills)
        write_tensors(new / "router.safetensors", inventory.router)
        if inventory.backbone is not None:
            write_tensors(new / "backbone.safetensors", inventory.backbone)
        if inventory.heads:
            write_tensors(new / "heads.safetensors", inventory.heads)
        write_facts(new, inventory.meta, inventory.tasks)


def save_adapted_inventory(
    folder: Path,
    model: Model,
    task: str,
    source: SavedInventory,
    *,
    place: Path,
    backbone_trained: bool,
    settings: Mapping[str, Any],
) -> None:
    """Write the differences of an adapted model from its source inventory.

    ``folder`` is part of a temporary folder that will be moved to ``place``.
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
    if heads := head_tensors(model):
        write_tensors(folder / "heads.safetensors", heads)
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
    """Return the inventory in a ``skills/`` folder or a run folder.

    An adapted task is combined with its source inventory, which is in ``source`` if it was moved.
    Raises a `CheckpointError` if a file is missing, damaged or of another version, or the source of
    an adapted task is missing or has changed.
    """
    folder = inventory_folder(folder)
    meta = read_facts(folder)
    if source is not None and SOURCE not in meta:
        raise CheckpointError(f"'{folder}' is a run, not an adapted task; remove the other run")
    base = _read_source(folder, meta[SOURCE], source) if SOURCE in meta else None
    skills = _read_part(folder, "skills", base and base.skills)
    router, backbone = _read_part(folder, "router", None), None
    if meta["backbone"]["trained"]:
        backbone = _read_part(folder, "backbone", base and (base.backbone or {}))
    heads = _read_part(folder, "heads", {})
    return SavedInventory(folder, meta, read_names(folder), skills, router, backbone, heads)


def _read_part(folder: Path, name: str, below: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Return tensors of a file, on top of those of the source inventory if there is one."""
    path = folder / f"{name}.safetensors"
    if below is not None and not path.exists():
        return below
    return (below or {}) | read_tensors(path, AGAIN)


def _read_source(
    folder: Path, origin: Mapping[str, str], given: str | Path | None
) -> SavedInventory:
    places = [folder / origin["relative"], Path(origin["path"])] if given is None else [Path(given)]
    skills = find_inventory(*places)
    if skills is None:
        raise CheckpointError(
            f"'{folder}' was adapted from the run in '{given or origin['path']}', which does not "
            "exist. Name the run with --from RUN (run= in Python), or copy it there"
        )
    digest = inventory_digest(skills)
    if digest != origin["inventory"]:
        raise CheckpointError(
            f"'{folder}' was adapted from another inventory ({origin['inventory'][:12]}) than the "
            f"one in '{skills}' ({digest[:12]}): of another run, or of this run before further "
            "training. Name the right run, or adapt again"
        )
    return read_inventory(skills)


def load_into(model: Model, saved: SavedInventory) -> None:
    """Copy a saved inventory into a model built with the same settings.

    If the backbone differs, or tensors are missing, unexpected or of other shapes, nothing is
    copied, and the `CheckpointError` lists them.
    """
    parts = {"skills": skill_tensors(model), "router": router_tensors(model)}
    _load(model, saved, parts | {"heads": head_tensors(model)})


def load_skills(model: SkilledModel, saved: SavedInventory) -> None:
    """Copy the skills of an earlier run, and its backbone, into a model, but not its router.

    The model has inventories of the same kinds, or attention over them.
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
    """Copy tensors of an inventory into those of a model, or raise an error and copy none.

    ``targets`` has the model's tensors by name, under some of ``"skills"``, ``"router"``,
    ``"backbone"``.
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
    """Return the tensors whose shapes differ from the wanted ones, with both shapes."""
    shapes = {
        name: (tuple(found[name].shape), tuple(wanted[name].shape))
        for name in found
        if name in wanted
    }
    return [f"{name} {one} instead of {two}" for name, (one, two) in shapes.items() if one != two]


def count_saved(path: Path, beginning: str = "") -> int:
    """Return the number of parameters in a safetensors file, read from its header.

    Scalars (such as a temperature), integers (such as positions of sparse skills) and initial
    values named `start_…` are not counted, nor are names without the prefix ``beginning``.
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
