"""Frozen skills of other runs, which the skills of a run are trained on top of (`skills.on`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mttl.assembly.build_router import build_level, build_router, skill_sizes
from mttl.assembly.saved_settings import ModelSettings, read_settings
from mttl.checkpoints.inventory_files import find_inventory, inventory_digest
from mttl.checkpoints.model_tensors import backbone_parameters, fingerprint, tensors_of
from mttl.checkpoints.saved_inventory import SavedInventory, copy_saved, read_inventory
from mttl.config.capabilities import asked_features, missing_features
from mttl.config.schema import Config
from mttl.io.errors import CheckpointError, TaskError, nearest
from mttl.routing.context import ConstantSlot
from mttl.skills.attach import Attachment, Level
from mttl.skills.skilled_layer import layers_of
from mttl.skills.weights.sparse import restore_supports

S = TypeVar("S", Config, ModelSettings)
# Features that all skills of a model need, if a section asks for them.
OF_ALL_SKILLS = ("packs", "compiles")


@dataclass(frozen=True)
class OtherSkills:
    """The skills of another run, and the level of the model that they become."""

    saved: SavedInventory
    settings: ModelSettings
    task: str  # whose routing weights are used
    slot: ConstantSlot
    level: Level

    def route(self, attachment: Attachment, n_features: int) -> None:
        """Set the mixture of skills in the slot."""
        saved, n_groups = self.saved, len(attachment.groups)
        n_heads, n_skills = skill_sizes(self.settings, len(saved.tasks))
        sizes = self.settings.router, n_groups, saved.tasks, n_heads, n_skills
        with torch.device("cpu"), torch.no_grad():
            router = build_router(*sizes, trained=True, n_features=n_features)
            copy_saved(saved, {"router": router.state_dict()})
            row = router.matrix()[:, [saved.tasks.index(self.task)]]
        self.slot.mixing = row.to(self.slot.mixing.device)

    def load(self, backbone: Any) -> None:
        """Copy the values of the skills into their layers, which stay frozen."""
        layers = layers_of(backbone, self.slot)
        restore_supports(layers, self.saved.skills)
        parts = {path: layer.inventory for path, layer in layers.items()}
        copy_saved(self.saved, {"skills": tensors_of(parts)})
        for inventory in parts.values():
            inventory.requires_grad_(False)

    def require_base(self, backbone: Any) -> None:
        """Raise a `CheckpointError` unless the skills were trained on a backbone's weights."""
        noted, own = self.saved.meta["backbone"], self.saved.backbone
        theirs = noted["fingerprint"] if own is None else fingerprint(own, values=True)
        if fingerprint(backbone_parameters(backbone), values=True) != theirs:
            raise CheckpointError(
                f"the skills of '{self.saved.folder}' (skills.on) belong to other weights of the "
                f"backbone ('{noted['name']}') than this run's; use a run on the same backbone"
            )


def open_others(settings: Config | ModelSettings) -> list[OtherSkills]:
    """Read the skills of the other runs that a model's settings name.

    Raises:
        CheckpointError: If a run is missing, was changed, or has skills that cannot be used so.
        TaskError: If a task is unknown or must be named.
    """
    asked = {name: who for name, who in asked_features(settings).items() if name in OF_ALL_SKILLS}
    return [_open(one, asked) for one in getattr(settings.skills, "on", ())]


def _open(one: Any, asked: Mapping[str, str]) -> OtherSkills:
    folder = find_inventory(one.folder)
    if folder is None:
        raise CheckpointError(
            f"skills.on: '{one.folder}' has no trained skills (no meta.json, also not in skills/); "
            "name the folder of a finished run, for a trained run with --on (on= in Python)"
        )
    if one.inventory not in (None, inventory_digest(folder)):
        raise CheckpointError(
            f"skills.on: the skills in '{folder}' have changed since this run was trained on top "
            "of them; copy them back, or name them with --on (on= in Python) to use them anyway"
        )
    saved, task = read_inventory(folder), one.task
    settings = read_settings(saved, ModelSettings)
    if problems := missing_features(settings, {"stacks": "skills.on", **asked}):
        raise CheckpointError("\n".join(f"'{folder}': {problem}" for problem in problems))
    names = ", ".join(saved.tasks)
    if task is None and len(saved.tasks) > 1:
        raise TaskError(
            f"skills.on: name a task of '{one.folder}', as '{one.folder}:TASK' ({names})"
        )
    task = task or next(iter(saved.tasks))
    if task not in saved.tasks:
        close = nearest(task, saved.tasks)
        raise TaskError(f"skills.on: '{one.folder}' has no task '{task}' ({names}).{close}")
    n_heads, n_skills = skill_sizes(settings, len(saved.tasks))
    slot = ConstantSlot(torch.zeros(1, 1, n_heads, n_skills))
    level = build_level(settings, len(saved.tasks), slot, fresh=False)
    return OtherSkills(saved, settings, task, slot, level)


def with_digests(settings: S) -> S:
    """Return the settings with absolute folders and digests of the runs in `skills.on`."""
    on = []
    for one in getattr(settings.skills, "on", ()):
        found = find_inventory(one.folder)
        digest = one.inventory or (found and inventory_digest(found))
        own = {"from": str(one.folder.resolve()), "inventory": digest}
        on.append(one.model_copy(update=own))
    if not on:
        return settings
    skills = settings.skills.model_copy(update={"on": on})
    return settings.model_copy(update={"skills": skills})
