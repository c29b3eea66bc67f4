"""From the section `router` to a task router."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from mttl.assembly.expert_matrix import read_expert_matrix
from mttl.assembly.factor_table import factor_rows
from mttl.config.plugin_section import PluginSection
from mttl.config.router_schema import CPoly, Metadata, Polytropon, Router
from mttl.io.errors import ConfigError
from mttl.plugins.classes import PluginError, describe_error
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.categorical import CategoricalRouter
from mttl.routing.task.coefficients import CoefficientRouter
from mttl.routing.task.fixed import (
    FixedRouter,
    average_router,
    expert_router,
    private_router,
    shared_router,
)
from mttl.routing.task.hyperformer import HyperFormerRouter
from mttl.routing.task.metadata import MetadataRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.priors import RoutingPrior
from mttl.routing.task.prompt_router import PromptRouter
from mttl.routing.task.random_member import RandomRouter
from mttl.routing.task.retrieval import RetrievalRouter
from mttl.routing.task.score_function import ScoreFunctionRouter
from mttl.routing.task.smear import SmearRouter
from mttl.routing.task.task_moe import TaskMoERouter
from mttl.routing.task.task_router import TaskRouter

LEARNED_ROUTERS: dict[str, type[TaskRouter]] = {
    "polytropon": PolytroponRouter,
    "metadata": MetadataRouter,
    "c_poly": CPolyRouter,
    "categorical": CategoricalRouter,
    "score_function": ScoreFunctionRouter,
    "random": RandomRouter,
    "task_moe": TaskMoERouter,
    "hyperformer": HyperFormerRouter,
    "coefficients": CoefficientRouter,
    "smear": SmearRouter,
    "retrieval": RetrievalRouter,
}


def router_class(router: Router) -> type[TaskRouter]:
    """Return the class of the router that the configuration describes."""
    if isinstance(router, PluginSection):
        return router.plugin_class
    return LEARNED_ROUTERS.get(router.kind, FixedRouter)


def count_skills(n_skills: int | Literal["per_task"], router: Router, n_tasks: int) -> int:
    """Return how many skills there are for some tasks."""
    common = n_tasks if n_skills == "per_task" else n_skills
    return common + (n_tasks * router.n_private if isinstance(router, CPoly) else 0)


def counted(router: Router) -> Router:
    """Return the section of a router whose private skills are counted in ``skills.n_skills``.

    An inventory to which tasks were added, or that was adapted to one, has not so many of each;
    what a task may use is saved with its router.
    """
    return router.model_copy(update={"n_private": 0}) if isinstance(router, CPoly) else router


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
    if isinstance(router, PluginSection):
        sizes = {"n_groups": n_groups, "n_tasks": len(tasks), "n_heads": n_heads}
        return _plugin_router(router, sizes | {"n_skills": n_skills}, n_features)
    if trained and router.kind not in LEARNED_ROUTERS:
        # The matrix is among what is loaded; the file it came from need not exist any more.
        return FixedRouter(torch.zeros(len(tasks), n_skills), n_groups, n_heads)
    if router.kind in ("shared", "none"):
        return shared_router(n_groups, len(tasks), n_heads)
    if router.kind == "private":
        return private_router(n_groups, len(tasks), n_heads)
    if router.kind == "average":
        return average_router(n_groups, len(tasks), n_skills, n_heads)
    if router.kind == "expert":
        matrix = read_expert_matrix(router.matrix, tasks, n_skills)
        return expert_router(matrix, n_groups, n_heads)
    settings = router.model_dump(exclude={"kind", "granularity", "final_temperature"})
    if isinstance(router, Polytropon):
        prior = router.prior
        settings = {
            "relaxed": router.relaxed,
            "hard": router.straight_through,
            "temperature": router.temperature,
            "init_scale": router.init_scale,
            "normalisation": router.normalise,
            "shared_skill": router.shared_skill,
            "logit_dropout": router.logit_dropout,
            "prior": RoutingPrior(
                ibp_alpha=prior.ibp.alpha if prior.ibp else 1.0,
                ibp_weight=prior.ibp.weight if prior.ibp else 0.0,
                sparsity=prior.sparsity,
                mutual_information=prior.mutual_information,
                orthogonality=prior.orthogonality,
            ),
        }
    if isinstance(router, CPoly):
        settings["n_private"] = router.n_private
    if isinstance(router, Metadata):
        return MetadataRouter(
            *(factor_rows(router.factors, tasks), n_groups, n_heads, n_skills), **settings
        )
    sizes = n_groups, len(tasks), n_heads, n_skills
    kind = LEARNED_ROUTERS[router.kind]
    if issubclass(kind, PromptRouter):
        settings["n_features"] = n_features or 1
    return _with_room(kind(*sizes, **settings), router.kind, n_features)


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


def _plugin_router(
    router: PluginSection, sizes: Mapping[str, int], n_features: int | None
) -> TaskRouter:
    """Build a custom router, and check the shape of its weights."""
    features = {} if n_features is None else {"n_features": n_features}
    made = _with_room(router.make(**sizes, **features), router.kind, n_features)
    with torch.no_grad():
        try:
            shape = tuple(made.matrix().shape)
        except Exception as error:
            raise PluginError(f"'{router.kind}': {describe_error(error)}") from error
    if shape != tuple(sizes.values()):
        raise ConfigError(
            f"router.kind '{router.kind}' gives weights of shape {shape}, and must give "
            f"{tuple(sizes.values())}: groups, tasks, heads, skills"
        )
    return made
