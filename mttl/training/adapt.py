"""A trained model made ready for tasks it has never seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from mttl.errors import ConfigError
from mttl.routing.fixed import average_router
from mttl.routing.task_router import TaskRouter
from mttl.skills.skilled_model import SkilledModel

AdaptMode = Literal[
    "zero_shot", "router_only", "skills_only", "all", "average", "from_scratch", "full"
]
# What each mode trains, by role.
TRAINED_ROLES: dict[AdaptMode, tuple[str, ...]] = {
    "zero_shot": (),
    "router_only": ("router",),
    "skills_only": ("skills",),
    "all": ("router", "skills"),
    "average": ("skills",),
    "from_scratch": ("router", "skills"),
    "full": ("router", "skills", "backbone"),
}


def adapt(
    model: SkilledModel, mode: AdaptMode, n_tasks: int = 1, *, init: str = "mean"
) -> SkilledModel:
    """Give a trained model a router for new tasks, and freeze what the mode does not train.

    Call it before the optimizer is made. The model is changed in place; copy it first to keep it.

    | mode | router of the new tasks | trained |
    |---|---|---|
    | ``zero_shot`` | new rows | nothing |
    | ``router_only`` | new rows | the router (MHR-z) |
    | ``skills_only`` | new rows, fixed | the skills |
    | ``all`` | new rows | router and skills (Polytropon) |
    | ``average`` | all skills alike | the skills (MHR-μ) |
    | ``from_scratch`` | fresh rows | router and fresh skills: no transfer but the backbone's |
    | ``full`` | new rows | everything, the backbone too |

    Args:
        model: Trained backbone, skills and router.
        mode: What to train.
        n_tasks: How many new tasks.
        init: ``"mean"`` starts new rows at the mean of the trained ones, ``"fresh"`` as an
            untrained router starts.

    Returns:
        The same model.

    Raises:
        ValueError: If the mode is unknown.
        ConfigError: If the mode trains a router that has nothing to train.

    References:
        Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, appendix A.2; for ``router_only`` and
        ``average`` Caccia et al., arXiv:2211.03831.
    """
    device = next(model.parameters()).device
    router = adapted_router(model.router, mode, n_tasks, init=init)
    model.router = router.to(device).train(model.router.training)
    inventories = [layer.inventory for layer in model.skilled_layers().values()]
    if mode == "from_scratch":
        for inventory in inventories:
            inventory.reset_parameters()
    roles = TRAINED_ROLES[mode]
    model.backbone.requires_grad_("backbone" in roles)
    model.router.requires_grad_("router" in roles)
    for inventory in inventories:
        inventory.requires_grad_("skills" in roles)
    return model


def adapted_router(
    known: TaskRouter, mode: AdaptMode, n_tasks: int, *, init: str = "mean"
) -> TaskRouter:
    """Return the router of new tasks that a mode begins with.

    Args:
        known: The trained one.
        mode: What to train.
        n_tasks: How many new tasks.
        init: How new rows start; fresh ones do in the mode ``from_scratch``.

    Raises:
        ValueError: If the mode is unknown.
        ConfigError: If the mode trains a router that has nothing to train.
    """
    if mode not in TRAINED_ROLES:
        raise ValueError(f"mode ('{mode}') must be one of {', '.join(get_args(AdaptMode))}")
    if mode == "average":
        return average_router(known.n_groups, n_tasks, known.n_skills, known.n_heads)
    router = known.for_new_tasks(n_tasks, init="fresh" if mode == "from_scratch" else init)
    if mode == "router_only" and not any(True for _ in router.parameters()):
        raise ConfigError(
            f"mode 'router_only' has nothing to train: a {type(known).__name__} has no parameters. "
            "Use 'skills_only', or an inventory trained with a learned router"
        )
    return router


@contextmanager
def adapted(
    model: SkilledModel, mode: AdaptMode, n_tasks: int = 1, *, init: str = "mean"
) -> Iterator[SkilledModel]:
    """Adapt a model for the length of a ``with`` block; afterwards it is as it was.

    Only what the mode trains is kept aside, so a large frozen backbone is never copied.

    Args:
        model: As for `adapt`, and so are the others.
        mode: What to train.
        n_tasks: How many new tasks.
        init: How new rows start.
    """
    router, training = model.router, model.training
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    before = {
        name: value.detach().clone()
        for name, value in model.backbone.named_parameters()
        if ("skills" if ".inventory." in f".{name}" else "backbone") in TRAINED_ROLES.get(mode, ())
    }
    try:
        yield adapt(model, mode, n_tasks, init=init)
    finally:
        model.router = router
        parameters = dict(model.backbone.named_parameters())
        with torch.no_grad():
            for name, value in before.items():
                parameters[name].copy_(value)
        for name, value in model.named_parameters():
            value.requires_grad_(name in trained)
            value.grad = None
        model.train(training)
