"""Settings stored in a saved inventory, for rebuilding its model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mttl.assembly.build_backbone import found_again
from mttl.checkpoints.inventory_files import find_inventory
from mttl.checkpoints.saved_inventory import SavedInventory, read_inventory
from mttl.config.backbone_schema import Backbone, Heads
from mttl.config.moe_schema import MoE
from mttl.config.schema import Generation
from mttl.config.section import Section
from mttl.config.skills_schema import Aggregation, Mixture, Router, Skills
from mttl.config.train_only_keys import of_training, read_instead
from mttl.data.prompt_form import PromptForm
from mttl.io.errors import CheckpointError, ConfigError
from mttl.plugins.classes import PluginError

S = TypeVar("S", bound=Section)
# Sections that adaptation takes from the run instead of the configuration.
OF_THE_RUN = ("backbone", "policy", "skills", "router", "moe", "aggregation", "heads")
_ABSENT = object()


class ModelSettings(Section):
    """Settings of a language model with skills, with sections of `Config`."""

    backbone: Backbone
    skills: Skills
    router: Router
    moe: MoE | None = None
    aggregation: Aggregation = Mixture()
    heads: Heads = Heads()
    data: PromptForm = PromptForm()
    generation: Generation = Generation()
    precision: str = "32-true"


def read_found_settings(saved: SavedInventory) -> ModelSettings:
    """Return the settings of a saved model, with current folders of backbone and other runs."""
    settings, run = read_settings(saved, ModelSettings), saved.folder.parent
    places = saved.meta["backbone"].get("places", {})
    found: dict[str, Any] = {"backbone": found_again(settings.backbone, places, run)}
    if on := getattr(settings.skills, "on", None):  # beside the run, if both were moved
        beside = [one.model_copy(update={"from": str(run.parent / one.folder.name)}) for one in on]
        on = [
            there if find_inventory(one.folder) is None and find_inventory(there.folder) else one
            for one, there in zip(on, beside, strict=True)
        ]
        found["skills"] = settings.skills.model_copy(update={"on": on})
    return settings.model_copy(update=found)


def read_settings(
    saved: SavedInventory, schema: type[S], plugins: Mapping[str, str] | None = None
) -> S:
    """Return the validated settings of an inventory; ``plugins`` as for `load_config`."""
    policies = "backbone" not in saved.meta["settings"]
    if policies == (schema is ModelSettings):
        what = "policies and no language model: use mttl export or mttl babyai film, or"
        what = what if policies else "a language model and no policies:"
        raise CheckpointError(f"'{saved.folder}' has {what} name another run")
    try:
        return schema.model_validate(saved.meta["settings"], context=plugins)
    except ValidationError as error:
        causes = (mistake.get("ctx", {}).get("error") for mistake in error.errors())
        of_plugin = next((cause for cause in causes if isinstance(cause, PluginError)), None)
        problem = f": {of_plugin}"
        if of_plugin is None:
            problem = (
                " has settings that this version of mttl does not know. Use the version that wrote "
                f"it ({saved.meta['libraries']['mttl']}): {error}"
            )
        raise CheckpointError(f"'{saved.folder / 'meta.json'}'{problem}") from error


def check_overrides(run: str | Path, config: Section, overrides: Sequence[str]) -> None:
    """Raise a `ConfigError` for overrides that have no effect in an adaptation of a run.

    These are training settings, and settings of the model or the prompt form that differ from the
    run's.
    """
    split = (text.partition("=") for text in overrides)
    given = {name.strip(): value.strip() for name, _, value in split}
    adapt = type(dict(config)["adapt"])
    for name in given:
        if of_training(name, adapt):
            own = read_instead(name, adapt)
            raise ConfigError(
                f"'{name}' is a training setting that adaptation does not read. "
                f"{f'Set {own} instead' if own else 'Remove it'}"
            )
    # Settings of the prompt form; the run defines the value of `auto`.
    form = [f"data.{field}" for field in PromptForm.model_fields]
    form = [name for name in form if given.get(name) not in (None, "auto")]
    names = [name for name in given if name.partition(".")[0] in OF_THE_RUN or name in form]
    if not names:
        return
    trees = config.model_dump(mode="json"), read_inventory(run).meta["settings"]
    for name in names:
        here, there = (_value(tree, name) for tree in trees)
        if here != there:
            has = "has no such setting"
            if there is not _ABSENT:
                has = f"was trained with {json.dumps(there, ensure_ascii=False)}"
            moved = "; use --backbone DIR for a backbone that was moved"
            raise ConfigError(
                f"'{name}' ({json.dumps(here, ensure_ascii=False)}) cannot be set in adaptation: "
                f"the run '{run}' {has}. Remove it{moved if name == 'backbone.name' else ''}"
            )


def _value(tree: Any, name: str) -> Any:
    for key in name.split("."):
        tree = tree.get(key, _ABSENT) if isinstance(tree, dict) else _ABSENT
    return tree
