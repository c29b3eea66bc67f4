"""A trained model made ready for tasks it has never seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import nn

from mttl.errors import ConfigError
from mttl.routing.fixed import average_router
from mttl.skills.inventory import Inventory
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
        ConfigError: If the mode trains a router that has nothing to train, or asks for mixing
            weights where attention takes their place.

    References:
        Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, appendix A.2; for ``router_only`` and
        ``average`` Caccia et al., arXiv:2211.03831.
    """
    if mode not in TRAINED_ROLES:
        raise ValueError(f"mode ('{mode}') must be one of {', '.join(get_args(AdaptMode))}")
    known = model.router
    if mode == "average":
        router = average_router(known.n_groups, n_tasks, known.n_skills, known.n_heads)
    else:
        fresh = mode == "from_scratch"
        router = known.for_new_tasks(n_tasks, init="fresh" if fresh else init)
    inventories = [layer.inventory for layer in model.skilled_layers().values()]
    attention = [part for inventory in inventories for part in _routing_parts(inventory)]
    if mode == "average" and attention:
        raise ConfigError(
            "mode 'average' has no meaning for a fusion: attention takes the place of mixing "
            "weights. Use 'skills_only', or the run whose skills were fused"
        )
    if mode == "router_only" and not (attention or any(True for _ in router.parameters())):
        raise ConfigError(
            f"mode 'router_only' has nothing to train: a {type(known).__name__} has no parameters. "
            "Use 'skills_only', or an inventory trained with a learned router"
        )
    device = next(model.parameters()).device
    model.router = router.to(device).train(known.training)
    if mode == "from_scratch":
        for inventory in inventories:
            inventory.reset_parameters()
    roles = TRAINED_ROLES[mode]
    model.backbone.requires_grad_("backbone" in roles)
    model.router.requires_grad_("router" in roles)
    for inventory in inventories:
        inventory.requires_grad_("skills" in roles)
    for part in attention:
        part.requires_grad_("router" in roles)
    return model


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
    roles = _backbone_roles(model)
    before = {
        name: value.detach().clone()
        for name, value in model.backbone.named_parameters()
        if roles[value] in TRAINED_ROLES.get(mode, ())
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


def _routing_parts(inventory: Inventory) -> list[nn.Module]:
    """Return what routes within an inventory: the attention of a fusion."""
    return [module for module in inventory.modules() if getattr(module, "role", None) == "router"]


def _backbone_roles(model: SkilledModel) -> dict[nn.Parameter, str]:
    """Return the role of every parameter in the backbone, its layers' skills included."""
    roles = dict.fromkeys(model.backbone.parameters(), "backbone")
    for layer in model.skilled_layers().values():
        roles |= dict.fromkeys(layer.inventory.parameters(), "skills")
        for part in _routing_parts(layer.inventory):
            roles |= dict.fromkeys(part.parameters(), "router")
    return roles
