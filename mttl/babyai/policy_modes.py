"""Adaptation modes for policies: the router of new levels, and what is trained."""

import torch

from mttl.adaptation.modes import (
    TRAINED_ROLES,
    adapted_router,
    own_skills,
    require_trainable,
)
from mttl.config.section import AdaptMode, RowInit
from mttl.skills.composed.composed_model import ComposedModel


def adapt_policies(
    model: ComposedModel, mode: AdaptMode, n_levels: int = 1, *, init: RowInit = "mean"
) -> ComposedModel:
    """Give trained policies a router for new levels, and freeze what the mode does not train.

    The modes are those of `mttl.adaptation.modes.apply_mode`, with the common parameters in the
    place of the backbone, except for ``from_scratch``: a policy has no pretrained backbone that
    could stay, so it needs a new model (see `mttl.babyai.build_policy.fresh_policies`), of which
    everything is trained.

    Args:
        model: Trained; changed in place, before the optimizer is made.
        mode: What to train.
        n_levels: How many new levels.
        init: ``"mean"`` starts new rows at the mean of the trained ones, ``"fresh"`` as an
            untrained router starts.

    Returns:
        The same model.

    Raises:
        ValueError: If the mode is ``from_scratch``.
        ConfigError: If the mode trains a router that has nothing to train.
    """
    if mode == "from_scratch":
        raise ValueError("mode 'from_scratch' needs new policies: see fresh_policies")
    require_trainable(mode, model.router)
    router = adapted_router(model.router, mode, n_levels, init=init)
    if own := own_skills(model.router, router):
        model.inventory.reset_skills(torch.tensor(own))
    model.router = router.to(model.device)
    roles = TRAINED_ROLES[mode]
    model.base.requires_grad_("backbone" in roles)
    model.inventory.requires_grad_("skills" in roles)
    model.router.requires_grad_("router" in roles)
    return model
