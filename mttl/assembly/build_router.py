"""From the section `router` to a task router."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.config.load import find_file
from mttl.config.plugin_section import PluginSection
from mttl.config.schema import Config
from mttl.config.skills_schema import Router
from mttl.io.errors import ConfigError, nearest
from mttl.io.reading import read_table, to_number
from mttl.plugins.classes import PluginError, describe_error
from mttl.routing.task.fixed import FixedRouter
from mttl.routing.task.task_router import SIZES, TaskRouter
from mttl.tasks.folder import Gym

Table = Mapping[str, Sequence[str]]


def router_class(router: Router) -> type[TaskRouter]:
    """Return the class of the router that the configuration describes, once it is loaded."""
    found = router.part_class
    fixed = issubclass(found, FixedRouter) and not found.draws
    return FixedRouter if fixed and not isinstance(router, PluginSection) else found


def count_skills(n_skills: int | Literal["per_task"], router: Router, n_tasks: int) -> int:
    """Return how many skills there are for some tasks."""
    common = n_tasks if n_skills == "per_task" else n_skills
    return common + (n_tasks * getattr(router, "n_private", 0))


def counted(router: Router) -> Router:
    """Return the section of a router whose private skills are counted in ``skills.n_skills``."""
    return router.model_copy(update={"n_private": 0}) if hasattr(router, "n_private") else router


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
    """Build the router that the configuration describes."""
    sizes = dict(zip(SIZES, (n_groups, len(tasks), n_heads, n_skills), strict=True))
    custom = isinstance(router, PluginSection)
    if trained and router_class(router) is FixedRouter:
        # The matrix is among what is loaded; the file it came from need not exist any more.
        return FixedRouter(torch.zeros(len(tasks), n_skills), n_groups, n_heads)
    names = [] if custom else [name for name in READERS if name in router.own_settings]
    read = {name: READERS[name](getattr(router, name), tasks, n_skills) for name in names}
    made = router.make(**sizes, **read, n_features=n_features or 1)
    for seen in made.seen:  # to be filled in before training, or loaded
        if seen != "prompts":
            made.show(seen, torch.zeros(made.n_tasks, n_features or 0))
    return _checked(made, router.kind, tuple(sizes.values())) if custom else made


def _checked(made: TaskRouter, kind: str, sizes: tuple[int, ...]) -> TaskRouter:
    """Return a custom router after a check of the shape of its weights."""
    with torch.no_grad():
        try:
            shape = tuple(made.matrix().shape)
        except Exception as error:
            raise PluginError(f"'{kind}': {describe_error(error)}") from error
    if shape != sizes:
        raise ConfigError(
            f"router.kind '{kind}' gives weights of shape {shape}, and must give {sizes}: groups, "
            "tasks, heads, skills"
        )
    return made


def read_expert_matrix(name: str, tasks: Sequence[str], n_skills: int) -> Float[Tensor, "T K"]:
    """Read the weights of the Expert baseline for some tasks; the file may hold more.

    It is a CSV file with a header of ``task`` and the skills' names, and a row per task.

    Raises:
        ConfigError: If the file is missing or malformed, has columns for another number of skills,
            or a task has no row or no skill.
    """
    path = find_file(name, setting="router.matrix")
    rows: dict[str, list[float]] = {}
    for row in read_table(path, ConfigError, ("task",)):
        task = row.pop("task")
        if task in rows:
            raise ConfigError(f"'{path}' has two rows of '{task}'")
        place = f"'{path}': a weight of '{task}'"
        rows[task] = [to_number(cell, place, ConfigError) for cell in row.values()]
    for task in tasks:
        problem = ""
        if task not in rows:
            problem = (
                f" has no row for the task '{task}'.{nearest(task, rows)} Name the matrix of your "
                "gym in data.expert_matrix"
            )
        elif not all(weight >= 0 for weight in rows[task]) or not any(rows[task]):
            problem = f": the weights of '{task}' must be at least 0, and one of them above"
        if problem:
            raise ConfigError(f"'{path}'{problem}")
    if (n_columns := max(map(len, rows.values()), default=0)) != n_skills:
        raise ConfigError(
            f"'{name}' has columns for {n_columns} skills, but skills.n_skills is "
            f"{n_skills}; set it to per_column"
        )
    return torch.tensor([rows[task] for task in tasks])


def with_factors(config: Config, gym: Gym, tasks: Sequence[str]) -> Config:
    """Return a configuration that names the factors of its tasks, where it routes by them."""
    router = config.router
    if getattr(router, "factors", True):
        return config
    table = {task: gym.factors(task) for task in tasks}
    return config.model_copy(update={"router": router.model_copy(update={"factors": table})})


def factor_rows(
    table: Table, tasks: Sequence[str], known: Table | None = None
) -> Float[Tensor, "T F"]:
    """Return which tasks have which factors, as 1 or 0, by a table of theirs, and maybe of others.

    The table ``known`` says which factors there are, in their order; by default it is the same.

    Raises:
        ConfigError: If a task is not in the table, or has a factor that is not known.
    """
    names = list(dict.fromkeys(name for own in (known or table).values() for name in own))
    rows = torch.zeros(len(tasks), len(names))
    for row, task in zip(rows, tasks, strict=True):
        if task not in table:
            raise ConfigError(
                f"router.factors says nothing of the task '{task}'.{nearest(task, table)} Name its "
                "factors there, or in TASKS.csv"
            )
        for name in table[task]:
            if name not in names:
                raise ConfigError(
                    f"the task '{task}' has the factor '{name}', which no task of training "
                    f"has.{nearest(name, names)} Learn it, with adapt.init 'mean' or 'fresh'"
                )
            row[names.index(name)] = 1
    return rows


# Arguments that are read for the tasks and the number of skills: see `ReadFrom`.
READERS: dict[str, Callable[[Any, Sequence[str], int], torch.Tensor]] = {
    "matrix": read_expert_matrix,
    "factors": lambda table, tasks, n_skills: factor_rows(table, tasks),
}
