"""Frozen skills of other runs, which the skills of a run are trained on top of (`skills.on`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from mttl.assembly.build_level import build_level, skill_sizes
from mttl.assembly.build_router import build_router
from mttl.assembly.saved_settings import ModelSettings, OtherRun, read_settings
from mttl.checkpoints.inventory_files import find_inventory, inventory_digest, inventory_folder
from mttl.checkpoints.model_tensors import backbone_parameters, fingerprint, tensors_of
from mttl.checkpoints.saved_inventory import SavedInventory, copy_saved, read_inventory
from mttl.config.capabilities import asked_features, missing_features
from mttl.config.schema import Config
from mttl.config.skills_schema import OfOtherRun
from mttl.io.errors import CheckpointError, ConfigError, TaskError
from mttl.routing.context import ConstantSlot
from mttl.routing.task.fixed import mixed_row
from mttl.skills.attach import Attachment, Level
from mttl.skills.blocks.feed_forward import InlineFeedForward, separated_name
from mttl.skills.skilled_layer import innermost, joined_name, layers_of
from mttl.skills.weights.sparse import place_supports, saved_supports

# Features that all skills of a model need, if a section asks for them.
OF_ALL_SKILLS = ("packs", "compiles")
On = str | tuple[str, str | Mapping[str, float]] | Mapping[str, Any]


@dataclass(frozen=True)
class OtherSkills:
    """The skills of another run, and the level of the model that they become."""

    saved: SavedInventory
    settings: ModelSettings
    shares: Mapping[str, float]  # of the run's tasks in the routing
    slot: ConstantSlot
    level: Level

    def route(self, attachment: Attachment, n_features: int) -> None:
        """Set the mixture of skills in the slot."""
        saved, n_groups = self.saved, len(attachment.groups)
        n_heads, n_skills = skill_sizes(self.settings, len(saved.tasks))
        sizes = self.settings.router, n_groups, saved.tasks, n_heads, n_skills
        with torch.device("cpu"):
            router = build_router(*sizes, trained=True, n_features=n_features)
            copy_saved(saved, {"router": router.state_dict()})
            row = mixed_row(router.eval(), saved.tasks, self.shares)
        self.slot.mixing = row.to(self.slot.mixing.device)

    def load(self, backbone: Any) -> None:
        """Copy the values of the skills into their layers, which stay frozen."""
        layers = layers_of(backbone, self.slot)
        if hasattr(self.settings.skills, "support"):  # saved supports may have other sizes
            place_supports(layers, saved_supports(self.saved.skills))
        parts = {path: layer.inventory for path, layer in layers.items()}
        copy_saved(self.saved, {"skills": tensors_of(parts)})
        for inventory in parts.values():
            inventory.requires_grad_(False)

    def require_base(self, backbone: Any) -> None:
        """Raise a `CheckpointError` unless the skills were trained on a backbone's weights."""
        noted, own = self.saved.meta["backbone"], self.saved.backbone
        ours = joined(backbone_parameters(backbone))
        if own is None:
            theirs, layers = noted["fingerprint"], layers_of(backbone, self.slot)
            inline = [p for p in layers if isinstance(innermost(layers[p]), InlineFeedForward)]
            ours = {separated_name(name, inline): value for name, value in ours.items()}
        else:
            theirs = fingerprint(own, values=True)
        if fingerprint(ours, values=True) != theirs:
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
    given = getattr(settings.skills, "on", [])
    noted = getattr(settings, "others", None) or [None] * len(given)
    asked = {name: who for name, who in asked_features(settings).items() if name in OF_ALL_SKILLS}
    return [_open(*pair, asked) for pair in zip(given, noted, strict=True)]


def _open(one: Any, noted: OtherRun | None, asked: Mapping[str, str]) -> OtherSkills:
    name = getattr(one, "from")
    places = [*([Path(noted.path)] if noted else []), Path(name)]
    folder = find_inventory(*places)
    if folder is None:
        raise CheckpointError(
            f"skills.on: '{name}' has no trained skills (no meta.json, also not in skills/); "
            "name the folder of a finished run, for a trained run with --on (on= in Python)"
        )
    if noted and inventory_digest(folder) != noted.inventory:
        raise CheckpointError(
            f"skills.on: the skills in '{folder}' have changed since this run was trained on top "
            "of them; copy them back, or name them with --on (on= in Python) to use them anyway"
        )
    saved = read_inventory(folder)
    saved = replace(saved, backbone=saved.backbone and joined(saved.backbone))
    if "backbone" not in saved.meta["settings"]:
        raise CheckpointError(f"skills.on: '{folder}' has policies and no language model")
    settings = read_settings(saved, ModelSettings)
    if problems := missing_features(settings, {"stacks": "skills.on", **asked}):
        raise CheckpointError("\n".join(f"'{folder}': {problem}" for problem in problems))
    shares = one.task
    if shares is None and len(saved.tasks) > 1:
        names = ", ".join(saved.tasks)
        raise TaskError(f"skills.on: name a task of '{name}', as '{name}:TASK' ({names})")
    if not isinstance(shares, Mapping):
        shares = {shares or next(iter(saved.tasks)): 1.0}
    n_heads, n_skills = skill_sizes(settings, len(saved.tasks))
    slot = ConstantSlot(torch.zeros(1, 1, n_heads, n_skills))
    level = build_level(settings, len(saved.tasks), slot, fresh=False)
    return OtherSkills(saved, settings, shares, slot, level)


def noted_others(config: Config) -> list[dict[str, str]]:
    """Return the folders and digests of the runs in a configuration's `skills.on`."""
    given = getattr(config.skills, "on", [])
    folders = [inventory_folder(getattr(one, "from")).resolve() for one in given]
    return [{"path": str(path), "inventory": inventory_digest(path)} for path in folders]


def with_others(settings: ModelSettings, on: Iterable[On]) -> ModelSettings:
    """Return the settings with other runs in `skills.on`; `ConfigError` if they are malformed."""
    if not hasattr(settings.skills, "on"):
        raise ConfigError(f"skills.kind '{settings.skills.kind}' cannot be on top of other runs")
    try:
        given = [OfOtherRun.model_validate(one) for one in on]
    except ValidationError as error:
        raise ConfigError(
            "on must be a list of runs with a task, such as 'runs/languages:fr' or "
            f"('runs/languages', 'fr'): {error}"
        ) from error
    skills = settings.skills.model_copy(update={"on": given})
    return settings.model_copy(update={"skills": skills, "others": ()})


def joined(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a backbone's parameters under the names without separated blocks."""
    return {joined_name(name): value for name, value in parameters.items()}
