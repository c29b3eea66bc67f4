"""From the section `router` to a task router."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from mttl.assembly.expert_matrix import read_expert_matrix
from mttl.assembly.factor_table import factor_rows
from mttl.config.plugin_section import PluginSection
from mttl.config.router_schema import Router
from mttl.io.errors import ConfigError
from mttl.plugins.classes import PluginError, describe_error
from mttl.routing.task.fixed import FixedRouter
from mttl.routing.task.task_router import SIZES, TaskRouter

# Arguments that are read for the tasks and the number of skills: see `ReadFrom`.
READERS: dict[str, Callable[[Any, Sequence[str], int], torch.Tensor]] = {
    "matrix": read_expert_matrix,
    "factors": lambda table, tasks, n_skills: factor_rows(table, tasks),
}


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
    """Return the section of a router whose private skills are counted in ``skills.n_skills``.

    An inventory to which tasks were added, or that was adapted to one, has not so many of each;
    what a task may use is saved with its router.
    """
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
    """Build the router that the configuration describes.

    Raises:
        ConfigError: If the matrix of an expert router cannot be read or does not fit, or a
            custom router has weights of another shape.
    """
    sizes = dict(zip(SIZES, (n_groups, len(tasks), n_heads, n_skills), strict=True))
    if isinstance(router, PluginSection):
        features = {} if n_features is None else {"n_features": n_features}
        made = _with_room(router.make(**sizes, **features), router.kind, n_features)
        return _checked(made, router.kind, tuple(sizes.values()))
    if trained and router_class(router) is FixedRouter:
        # The matrix is among what is loaded; the file it came from need not exist any more.
        return FixedRouter(torch.zeros(len(tasks), n_skills), n_groups, n_heads)
    read = {
        name: READERS[name](getattr(router, name), tasks, n_skills)
        for name in READERS
        if name in router.own_settings
    }
    made = router.make(**sizes, **read, n_features=n_features or 1)
    return _with_room(made, router.kind, n_features)


def _with_room(made: TaskRouter, name: str, n_features: int | None) -> TaskRouter:
    """Make room for what a router sees of tasks: it is filled in before training, or loaded."""
    if made.seen and n_features is None:
        raise ConfigError(
            f"router.kind '{name}' sees {' and '.join(made.seen)}, which only text has"
        )
    for seen in made.seen:
        if seen != "prompts":
            made.show(seen, torch.zeros(made.n_tasks, n_features or 0))
    return made


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
