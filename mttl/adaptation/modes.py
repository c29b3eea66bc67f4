"""Adaptation modes: the router of new tasks, and the trained parameters."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.aggregation.packed_weights import packed_layers
from mttl.config.schema import Adapt
from mttl.config.section import AS_TRAINED, FREE, AdaptMode, RowInit
from mttl.heads.task_heads import TaskHeads
from mttl.io.errors import ConfigError
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.fixed import AverageRouter, CoefficientRouter, ExpertRouter, FixedRouter
from mttl.routing.task.metadata import MetadataRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRouter
from mttl.routing.token.members import MemberRouter
from mttl.skills.inventory import Inventory
from mttl.skills.skilled_model import SkilledModel
from mttl.training.optim import ROUTERS

# Trained roles by mode.
TRAINED_ROLES: dict[AdaptMode, tuple[str, ...]] = {
    "zero_shot": (),
    "in_context": (),
    "router_only": ("router", "heads"),
    "skills_only": ("skills", "heads"),
    "all": ("router", "skills", "heads"),
    "average": ("skills", "heads"),
    "from_scratch": ("router", "skills", "heads"),
    "full": ("router", "skills", "heads", "backbone"),
}


def apply_mode(
    model: SkilledModel,
    mode: AdaptMode,
    n_tasks: int = 1,
    *,
    init: RowInit = "mean",
    rows: Float[Tensor, "T _"] | None = None,
    heads: TaskHeads | None = None,
) -> SkilledModel:
    """Give a trained model a router and heads for new tasks; freeze what the mode does not train.

    Call it before creating the optimizer. The model is changed in place. `Adapt.mode` describes the
    modes: ``router_only`` is MHR-z, ``all`` Polytropon, ``average`` MHR-μ; ``from_scratch`` keeps
    only the backbone. All modes but this and ``full`` freeze `common_parameters`.

    With equal weights all skills receive the same update, so in ``average`` skills that mix factors
    are trained like a single skill. Token routers count as router and their experts as skills. With
    private skills (C-Poly), a new task has re-initialised ones if the mode trains skills, else only
    the common skills; a task initialised as a trained one has that task's skills.

    `Adapt.init` defines the initialisation of new rows; `adapted_router` describes ``rows``.

    Raises:
        ConfigError: If the mode trains a router without parameters, averages although no task mixes
            skills, or re-initialises experts that replaced parts of the backbone.

    References:
        Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, appendix A.2; for ``router_only`` and
        ``average`` Caccia et al., arXiv:2211.03831.
    """
    known, roles = model.router, TRAINED_ROLES[mode]
    router = adapted_router(known, mode, n_tasks, init=init, rows=rows)
    reinitialised = mode == "from_scratch" or init == "private_skill"
    _check_mode(model, router, mode, init, reinitialised=reinitialised)
    device = next(model.parameters()).device
    model.router = router.to(device).train(model.router.training)
    model.heads = None if heads is None else heads.to(device).train(model.router.training)
    parts = parts_by_role(model)
    keeps = mode not in ("from_scratch", "full")
    if reinitialised:
        for skills in parts["skills"]:
            if keeps and getattr(skills, "common_parameters", ()):
                skills.reset_skills(torch.arange(known.n_skills))  # type: ignore[operator]
            else:
                skills.reset_all_skills()  # type: ignore[operator]
        # A mode that does not train the router keeps the token routers.
        for part in parts["router"] if "router" in roles else ():
            if part is not model.router:
                part.reset_parameters()  # type: ignore[operator]
    elif init != "nearest_task" and (own := own_skills(known, router)):
        for layer in model.skilled_layers().values():
            layer.inventory.reset_skills(torch.tensor(own))
    tuned = _tuned_backbone(model) if "backbone" in roles else []
    model.backbone.requires_grad_(False)
    for value in tuned:
        value.requires_grad_(True)
    for role, members in parts.items():
        for part in members:
            part.requires_grad_(role in roles)
            for name in getattr(part, "common_parameters", ()) if keeps else ():
                part.get_parameter(name).requires_grad_(False)
    return model


def adapted_router(
    known: TaskRouter,
    mode: AdaptMode,
    n_tasks: int,
    *,
    init: RowInit = "mean",
    rows: Float[Tensor, "T _"] | None = None,
) -> TaskRouter:
    """Return the initial router of new tasks; `Adapt.init` describes the initialisations.

    Rows of ``expert_row``, ``private_skill`` (the two baselines) and ``average`` are fixed; in mode
    ``from_scratch`` the mean is replaced by ``fresh``. ``rows`` are the routing weights or factors
    of the new tasks, or a trained task's id, depending on ``init``.

    Raises:
        ValueError: If ``rows`` is missing, or the trained router has no rows.

    References:
        Private and Expert: Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 2.5.
    """
    shape = known.n_groups, n_tasks, known.n_heads, known.n_skills
    if "average" in (mode, init):
        return AverageRouter(*shape)
    if rows is None and init in ("expert_row", "factors", *AS_TRAINED):
        raise ValueError(f"init '{init}' needs rows (routing weights or a task)")
    given = torch.empty(0) if rows is None else rows
    if init == "expert_row":
        return ExpertRouter(*shape, matrix=given)
    if init == "factors":
        assert isinstance(known, MetadataRouter)
        return known.with_rows(known.composed(given.to(known.factors.device)).detach())
    if init == "private_skill":
        only = torch.eye(known.n_skills)[:1].repeat(n_tasks, 1)
        return FixedRouter(only, known.n_groups, known.n_heads)
    if init == "learned":
        return PolytroponRouter(*shape)
    if init in AS_TRAINED:
        known = known.of_tasks(given[0, :1].long())
    if init in FREE:
        free = CoefficientRouter(*shape)
        if init in AS_TRAINED:
            free.rows.data.copy_(known.matrix().detach())
        return free
    start = "mean" if init in AS_TRAINED else init
    start = "fresh" if mode == "from_scratch" else start
    if isinstance(known, CPolyRouter):
        return known.for_new_tasks(n_tasks, init=start, private="skills" in TRAINED_ROLES[mode])
    return known.for_new_tasks(n_tasks, init=start)


def row_starts(known: TaskRouter, adapt: Adapt) -> tuple[RowInit, ...]:
    """Return the initialisations to try for a new task, as `Adapt.init` describes.

    The mean scored higher when only routing weights are trained. C-Poly uses the mean too, because
    its private skills belong to other tasks.
    """
    if adapt.init == "best_coefficients" and known.task_rows and not _differ(known):
        return ("coefficients",)
    if adapt.init not in ("auto", "best_of_two"):
        return (adapt.init,)
    chosen = adapt.mode == "all" and adapt.examples != 0 and not isinstance(known, CPolyRouter)
    if not chosen or not _differ(known):
        return ("mean",)
    return ("nearest_task", "mean") if adapt.init == "best_of_two" else ("nearest_task",)


def _differ(known: TaskRouter) -> bool:
    rows = [(getattr(known, name), place.axis) for name, place in known.task_rows.items()]
    return any((row != row.narrow(axis, 0, 1)).any().item() for row, axis in rows)


def own_skills(known: TaskRouter, new: TaskRouter) -> list[int]:
    """Return the private skills of new tasks (C-Poly), which are re-initialised."""
    if not (isinstance(known, CPolyRouter) and isinstance(new, CPolyRouter)):
        return []
    return (new.allowed.any(0) & ~known.common).nonzero().flatten().tolist()


def require_trainable(mode: AdaptMode, *routers: nn.Module) -> None:
    """Raise a `ConfigError` if only routers are trained and none has parameters."""
    if mode == "router_only" and not any(True for part in routers for _ in part.parameters()):
        raise ConfigError(
            f"mode 'router_only' needs a router with parameters, which a "
            f"{type(routers[-1]).__name__} does not have. Use 'skills_only', or a run with a "
            "learned router"
        )


def parts_by_role(model: SkilledModel) -> dict[str, list[nn.Module]]:
    """Return the modules by role, except those of the backbone."""
    skills: list[nn.Module] = [layer.inventory for layer in model.skilled_layers().values()]
    routers: list[nn.Module] = [model.router]
    for layer in model.skilled_layers().values():
        routers += _attention_parts(layer.inventory)  # attention of a fusion
    for layer in model.token_layers().values():
        skills.append(layer.experts)
        if layer.shared is not None:
            skills.append(layer.shared.experts)
        routers.append(layer.router)
    heads: list[nn.Module] = [] if model.heads is None else [model.heads]
    return {"skills": skills, "router": routers, "heads": heads}


def count_trained(model: SkilledModel) -> int:
    """Return the number of trained parameters, without skills that no task can use."""
    router = model.router
    n_used = router.n_skills
    if isinstance(router, FixedRouter):
        n_used = int((router.weights > 0).any(0).sum())
    elif isinstance(router, CPolyRouter):
        n_used = int(router.allowed.any(0).sum())
    shares = {
        id(value): n_used / router.n_skills
        for layer in model.skilled_layers().values()
        for value in layer.inventory.stacks()
    }
    if isinstance(router, CPolyRouter):
        shares[id(router.logits)] = float(router.allowed.mean())
    return sum(
        round(shares.get(id(value), 1.0) * value.numel())
        for value in model.parameters()
        if value.requires_grad
    )


def _attention_parts(inventory: Inventory) -> list[nn.Module]:
    return [module for module in inventory.modules() if getattr(module, "role", None) in ROUTERS]


def _check_mode(
    model: SkilledModel, router: TaskRouter, mode: AdaptMode, init: RowInit, *, reinitialised: bool
) -> None:
    """Raise a `ConfigError` if the model does not support a mode or initialisation."""
    require_trainable(mode, router, *parts_by_role(model)["router"][1:])
    skilled = [layer.inventory for layer in model.skilled_layers().values()]
    tokens = model.token_layers().values()
    weighed = mode == "average" or init in ("average", *FREE)
    cause = "mode 'average'" if mode == "average" else f"init '{init}'"
    rows_stay = isinstance(router, FixedRouter) and mode not in ("average", "from_scratch")
    problems = {
        f"mode '{mode}' trains the backbone, but a quantised backbone cannot be trained. Use 'all' "
        "or 'skills_only'": "backbone" in TRAINED_ROLES[mode]
        and bool(packed_layers(model.backbone)),
        "init 'fresh' needs learned routing weights, and those of this run are fixed, so a new "
        "task would keep equal weights of all skills. Use 'private_skill' (a new skill), "
        "'expert_row' (a row of the expert matrix), 'auto' (nearest trained task), or 'average' "
        "for equal weights": init == "fresh" and rows_stay and _differ(model.router),
        f"{cause} does not work with a fusion, whose attention replaces mixing weights. Use "
        "'skills_only', or the run whose skills were fused": weighed
        and any(map(_attention_parts, skilled)),
        f"{cause} needs skills that tasks mix, but only tokens choose here. Use 'skills_only', "
        "which keeps the token routers": weighed and not model.router.n_groups,
        f"init '{init}' allows negative weights, but stacked skills need weights that are "
        "fractions of a sum. Use 'mean', or another init": init in FREE
        and any(len(getattr(own, "stages", ())) > 1 for own in skilled),
        f"mode '{mode}' would re-initialise the members whose weights route the tokens. Use "
        "'zero_shot' or 'skills_only'": reinitialised
        and any(isinstance(layer.router, MemberRouter) for layer in tokens),
        f"mode '{mode}' needs the backbone's feed-forward blocks, which experts replaced in "
        "training. Use another mode, or experts that keep the blocks (lora, adapter)": reinitialised
        and any(layer.base is None for layer in tokens),
    }
    if found := next((problem for problem, wrong in problems.items() if wrong), None):
        raise ConfigError(found)


def kept_state(model: SkilledModel, mode: AdaptMode) -> Callable[[], None]:
    """Return a function that restores the parts of a model that a mode changes.

    Only the trained parts are copied, never a frozen backbone.
    """
    router, heads, training = model.router, model.heads, model.training
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    kept = [(value, value.detach().clone()) for value in _changing(model, mode)]

    def bring_back() -> None:
        model.router, model.heads = router, heads
        with torch.no_grad():
            for value, before in kept:
                value.copy_(before)
        for name, value in model.named_parameters():
            value.requires_grad_(name in trained)
            value.grad = None
        model.train(training)

    return bring_back


def _changing(model: SkilledModel, mode: AdaptMode) -> list[torch.Tensor]:
    """Return the tensors that a mode changes, except router and heads, which are replaced."""
    roles, parts = TRAINED_ROLES[mode], parts_by_role(model)
    if "skills" in roles:  # token routers are re-initialised with the skills
        roles = (*roles, "router")
    parts["router"].remove(model.router)
    parts["heads"].clear()
    modules = [module for role, members in parts.items() if role in roles for module in members]
    found = [value for module in modules for value in (*module.parameters(), *module.buffers())]
    return [*found, *(_tuned_backbone(model) if "backbone" in roles else [])]


def _tuned_backbone(model: SkilledModel) -> list[nn.Parameter]:
    """Return the trained parameters of a backbone: the parts that the run trained, or all."""
    parts = [part for members in parts_by_role(model).values() for part in members]
    others = {id(value) for part in parts for value in part.parameters()}
    backbone = [value for value in model.backbone.parameters() if id(value) not in others]
    return [value for value in backbone if value.requires_grad] or backbone
