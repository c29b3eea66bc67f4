"""The second stage of training: attention over the skills of an earlier run."""

from typing import Any

from mttl.build.saved_settings import ModelSettings, read_settings
from mttl.checkpoint import load_frozen_skills, read_inventory
from mttl.config.schema import Config
from mttl.config.skills_schema import Fusion
from mttl.errors import CheckpointError
from mttl.skills.skilled_model import SkilledModel

# Settings that do not change what the network computes.
FREE = {"train", "gradient_checkpointing", "compile", "dtype"}


def load_source(model: SkilledModel, config: Config, fusion: Fusion) -> None:
    """Give a model with attention the skills, and the backbone, of the run that trained them.

    Args:
        model: As built from the configuration.
        config: Its sections backbone and skills are those of the run.
        fusion: Names the run.

    Raises:
        CheckpointError: If there is no such run, or its sections differ; they are listed.
    """
    saved = read_inventory(fusion.source)
    settings = saved.meta["settings"]
    if settings.get("aggregation", {}).get("kind") == "fusion":
        raise CheckpointError(
            f"aggregation.source '{fusion.source}' is a fusion itself; name the run of its skills"
        )
    theirs = {
        "backbone": _without(settings.get("backbone", {}), FREE),
        "skills": read_settings(saved, ModelSettings).skills.model_dump(mode="json"),
    }
    if theirs["skills"].get("n_skills") == "per_task":
        theirs["skills"]["n_skills"] = len(saved.tasks)
    ours = {
        "backbone": _without(config.backbone.model_dump(mode="json"), FREE),
        "skills": config.skills.model_dump(mode="json") | {"n_skills": model.router.n_skills},
    }
    differing = [
        f"{section}.{name}: {values.get(name)!r} there, {ours[section].get(name)!r} here"
        for section, values in theirs.items()
        for name in sorted(values.keys() | ours[section].keys())
        if values.get(name) != ours[section].get(name)
    ]
    if differing:
        raise CheckpointError(
            f"the configuration is not that of aggregation.source '{fusion.source}':\n"
            + "\n".join(differing)
            + f"\nStart from that run's own: -c {fusion.source}/config.yaml+aggregation/fusion.yaml"
        )
    load_frozen_skills(model, saved)


def _without(settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}
