"""Skills of a model, as its settings describe them, for attachment to its backbone."""

from functools import partial

from mttl.assembly.build_router import count_skills
from mttl.assembly.saved_settings import ModelSettings
from mttl.config.plugin_section import PartSection
from mttl.config.schema import Config
from mttl.config.skills_schema import Aggregation, Fusion, kinds_of
from mttl.skills.attach import Level, Placement
from mttl.skills.attention import AttendedInventory
from mttl.skills.gated import GatedInventory
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_layer import Slot


def skill_sizes(settings: Config | ModelSettings, n_tasks: int) -> tuple[int, int]:
    """Return the numbers of heads and of skills, or experts that tasks choose, for the tasks."""
    skills, moe = settings.skills, settings.moe
    n_heads, n_skills = (skills.n_heads, skills.n_skills) if kinds_of(skills) else (1, 1)
    if not kinds_of(skills) and moe is not None and moe.task_prior != "none":
        n_skills = moe.n_experts
    return n_heads, count_skills(n_skills, settings.router, n_tasks)


def build_level(
    settings: Config | ModelSettings, n_tasks: int, slot: Slot, *, fresh: bool
) -> Level:
    """Return the skills of a model; see `Level`."""
    make = partial(_make_inventory, settings.aggregation, *skill_sizes(settings, n_tasks))
    placements = [
        Placement(partial(make, one), one.targets, one.part_class.attachment_point)
        for one in kinds_of(settings.skills)
    ]
    return Level(placements, slot, settings.router.granularity, fresh)


def _make_inventory(
    aggregation: Aggregation,
    n_heads: int,
    n_skills: int,
    skills: PartSection,
    in_features: int,
    out_features: int,
    *more: int,
) -> Inventory:
    sizes = {"in_features": in_features, "out_features": out_features, "n_skills": n_skills}
    own = zip(getattr(skills.part_class, "internal", ()), more, strict=False)
    made = skills.make(**sizes, n_heads=n_heads, **dict(own))
    made.require_use("task")
    if isinstance(aggregation, Fusion):
        found = AttendedInventory(made, **aggregation.model_dump(exclude={"kind", "source"}))
    else:
        found = GatedInventory(made) if skills.gate else made
        if skills.identical_init:
            found.make_identical()
    if found.n_heads != n_heads:
        raise ValueError(
            f"n_heads ({n_heads}) must be 1 for {type(found).__name__}; lora supports several"
        )
    return found
