"""Build the skills and the task router of a model from its settings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.assembly.saved_settings import ModelSettings
from mttl.config.load import find_file
from mttl.config.plugin_section import PartSection, PluginSection
from mttl.config.schema import Config
from mttl.config.skills_schema import Aggregation, Fusion, Router, kinds_of
from mttl.io.errors import ConfigError, nearest
from mttl.io.reading import read_table, to_number
from mttl.plugins.classes import PluginError, describe_error
from mttl.routing.task.fixed import FixedRouter
from mttl.routing.task.task_router import PER_PASS, SIZES, TaskRouter
from mttl.skills.attach import Level, Placement
from mttl.skills.attention import AttendedInventory
from mttl.skills.gated import GatedInventory
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_layer import Slot
from mttl.tasks.folder import Gym

Table = Mapping[str, Sequence[str]]


def router_class(router: Router) -> type[TaskRouter]:
    """Return the class that the configured router has when it is loaded from a run."""
    found = router.part_class
    fixed = issubclass(found, FixedRouter) and not found.draws
    return FixedRouter if fixed and not isinstance(router, PluginSection) else found


def count_skills(n_skills: int | Literal["per_task"], router: Router, n_tasks: int) -> int:
    """Return the number of skills for a number of tasks."""
    common = n_tasks if n_skills == "per_task" else n_skills
    return common + (n_tasks * getattr(router, "n_private", 0))


def counted(router: Router) -> Router:
    """Return the router's section with its private skills included in ``skills.n_skills``."""
    return router.model_copy(update={"n_private": 0}) if hasattr(router, "n_private") else router


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


def build_router(
    router: Router,
    n_groups: int,
    tasks: Sequence[str],
    n_heads: int,
    n_skills: int,
    *,
    trained: bool = False,
    n_features: int | None = None,
) -> TaskRouter:
    """Build the router of a configuration."""
    sizes = dict(zip(SIZES, (n_groups, len(tasks), n_heads, n_skills), strict=True))
    custom = isinstance(router, PluginSection)
    if trained and router_class(router) is FixedRouter:
        # The matrix is loaded later; its original file may no longer exist.
        return FixedRouter(torch.zeros(len(tasks), n_skills), n_groups, n_heads)
    names = [] if custom else [name for name in READERS if name in router.own_settings]
    read = {name: READERS[name](getattr(router, name), tasks, n_skills) for name in names}
    made = router.make(**sizes, **read, n_features=n_features or 1)
    for seen in made.seen:  # filled before training, or loaded
        if seen not in PER_PASS:
            made.show(seen, torch.zeros(made.n_tasks, n_features or 0))
    return _checked(made, router.kind, tuple(sizes.values())) if custom else made


def _checked(made: TaskRouter, kind: str, sizes: tuple[int, ...]) -> TaskRouter:
    """Return a plug-in router after checking the shape of its weights."""
    with torch.no_grad():
        try:
            shape = tuple(made.matrix().shape)
        except Exception as error:
            raise PluginError(f"'{kind}': {describe_error(error)}") from error
    if shape != sizes:
        raise ConfigError(
            f"router.kind '{kind}' returns weights of shape {shape}; they must have the shape "
            f"{sizes} (groups, tasks, heads, skills)"
        )
    return made


def read_expert_matrix(name: str, tasks: Sequence[str], n_skills: int) -> Float[Tensor, "T K"]:
    """Return the rows of an expert matrix for some tasks; the file may have more.

    The CSV file has a header of ``task`` and the skills' names, and a row per task. Raises a
    `ConfigError` if the file is missing or malformed, or has another number of skills, or a task
    has no row or only zeros.
    """
    path = find_file(name, setting="router.matrix")
    rows: dict[str, list[float]] = {}
    for row in read_table(path, ConfigError, ("task",)):
        task = row.pop("task")
        if task in rows:
            raise ConfigError(f"'{path}' has two rows for '{task}'")
        place = f"'{path}': a weight of '{task}'"
        rows[task] = [to_number(cell, place, ConfigError) for cell in row.values()]
    for task in tasks:
        if task not in rows:
            raise ConfigError(
                f"'{path}' has no row for the task '{task}'.{nearest(task, rows)} Set "
                "data.expert_matrix to the matrix of your tasks"
            )
        if not all(weight >= 0 for weight in rows[task]) or not any(rows[task]):
            raise ConfigError(
                f"'{path}': the weights of '{task}' must be at least 0, and one above 0"
            )
    if (n_columns := max(map(len, rows.values()), default=0)) != n_skills:
        raise ConfigError(
            f"'{name}' has columns for {n_columns} skills, but skills.n_skills is "
            f"{n_skills}; set it to per_column or change the file"
        )
    return torch.tensor([rows[task] for task in tasks])


def with_factors(config: Config, gym: Gym, tasks: Sequence[str]) -> Config:
    """Return a configuration with the factors of its tasks, if the router needs them."""
    router = config.router
    if getattr(router, "factors", True):
        return config
    table = {task: gym.factors(task) for task in tasks}
    return config.model_copy(update={"router": router.model_copy(update={"factors": table})})


def factor_rows(
    table: Table, tasks: Sequence[str], known: Table | None = None
) -> Float[Tensor, "T F"]:
    """Return a matrix of 1 and 0 that shows which tasks have which factors.

    ``known`` defines the factors and their order; by default it is ``table``. Raises a
    `ConfigError` if a task is not in the table, or has an unknown factor.
    """
    names = list(dict.fromkeys(name for own in (known or table).values() for name in own))
    rows = torch.zeros(len(tasks), len(names))
    for row, task in zip(rows, tasks, strict=True):
        if task not in table:
            raise ConfigError(
                f"router.factors has no task '{task}'.{nearest(task, table)} Add its factors "
                "there, or in TASKS.csv"
            )
        for name in table[task]:
            if name not in names:
                raise ConfigError(
                    f"the task '{task}' has the factor '{name}', which no training task "
                    f"has.{nearest(name, names)} Use adapt.init 'mean' or 'fresh' instead"
                )
            row[names.index(name)] = 1
    return rows


# Readers of arguments that depend on the tasks and the number of skills; see `ReadFrom`.
READERS: dict[str, Callable[[Any, Sequence[str], int], torch.Tensor]] = {
    "matrix": read_expert_matrix,
    "factors": lambda table, tasks, n_skills: factor_rows(table, tasks),
}
