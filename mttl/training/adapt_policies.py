"""Trained policies made ready for levels they have never seen."""

from typing import get_args

from mttl.errors import ConfigError
from mttl.routing.fixed import average_router
from mttl.skills.compose import ComposedModel
from mttl.training.adapt import TRAINED_ROLES, AdaptMode


def adapt_policies(
    model: ComposedModel, mode: AdaptMode, n_levels: int = 1, *, init: str = "mean"
) -> ComposedModel:
    """Give trained policies a router for new levels, and freeze what the mode does not train.

    The modes are those of `mttl.training.adapt.adapt`, with the common parameters in the place of
    the backbone, except for ``from_scratch``: a policy has no pretrained backbone that could stay,
    so it needs a new model (see `mttl.config.build_policy.fresh_policies`), of which everything is
    trained.

    Args:
        model: Trained; changed in place, before the optimizer is made.
        mode: What to train.
        n_levels: How many new levels.
        init: ``"mean"`` starts new rows at the mean of the trained ones, ``"fresh"`` as an
            untrained router starts.

    Returns:
        The same model.

    Raises:
        ValueError: If the mode is unknown.
        ConfigError: If the mode trains a router that has nothing to train.
    """
    if mode not in TRAINED_ROLES:
        raise ValueError(f"mode ('{mode}') must be one of {', '.join(get_args(AdaptMode))}")
    known, device = model.router, model.device
    if mode == "from_scratch":
        model.router = known.for_new_tasks(n_levels, init="fresh").to(model.device)
        return model.requires_grad_(True)
    if mode == "average":
        router = average_router(known.n_groups, n_levels, known.n_skills, known.n_heads)
    else:
        router = known.for_new_tasks(n_levels, init=init)
    if mode == "router_only" and not any(True for _ in router.parameters()):
        raise ConfigError(
            f"mode 'router_only' has nothing to train: a {type(known).__name__} has no parameters. "
            "Use 'skills_only', or policies trained with a learned router"
        )
    model.router = router.to(device)
    roles = TRAINED_ROLES[mode]
    model.base.requires_grad_("backbone" in roles)
    model.inventory.requires_grad_("skills" in roles)
    model.router.requires_grad_("router" in roles)
    return model
