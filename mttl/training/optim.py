"""Optimizers with a learning rate per role, and their schedules."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from mttl.config.optim_schema import Optim
from mttl.io.errors import ConfigError
from mttl.io.reading import exact_fraction
from mttl.skills.weight_decay import decays

ROLES = ("skills", "router", "token_router", "heads", "backbone")
ROUTERS = ("router", "token_router")


def build_optimizer(optim: Optim, model: nn.Module, *, fused: bool = True) -> Optimizer:
    """Return an optimizer over the trainable parameters of a model, grouped by role.

    ``fused`` updates all parameters in one kernel, which excludes gradient clipping in mixed
    precision.

    References:
        Two learning rates: Ponti, Sordoni, Bengio and Reddy, arXiv:2202.13914, section 2. A
        separate rate for second factors: Hayou, Ghosh and Yu, *LoRA+: Efficient Low Rank Adaptation
        of Large Models*, ICML 2024, arXiv:2402.12354.
    """
    own = {role: getattr(optim, f"{role}_lr", None) for role in ROLES}
    rates = {role: optim.lr if rate is None else rate for role, rate in own.items()}
    groups = parameter_groups(
        model, lr=rates, weight_decay=optim.weight_decay, up_lr_ratio=optim.up_lr_ratio
    )
    if optim.kind == "adafactor":
        return torch.optim.Adafactor(
            groups,
            lr=optim.lr,
            beta2_decay=optim.beta2_decay,
            d=optim.clip_threshold,
            eps=(None, optim.smallest_scale),
        )
    kind = torch.optim.AdamW if optim.kind == "adamw" else torch.optim.Adam
    first, second = optim.betas
    return kind(groups, lr=optim.lr, fused=fused, betas=(first, second), eps=optim.eps)


def schedule_factor(optim: Optim, total_steps: int) -> Callable[[int], float]:
    """Return the learning-rate factor of ``optim`` as a function of the step."""
    warmup = optim.warmup if optim.warmup >= 1 else exact_fraction(optim.warmup, total_steps)
    return learning_rate_factor(optim.schedule, int(warmup), total_steps)


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Return the role of every trainable parameter, by name.

    It is the role of the nearest enclosing module with one (`module.role`); parameters under
    ``backbone`` without a role have ``"backbone"``.

    Raises:
        ValueError: If a trainable parameter has no known role.
    """
    module_roles = {
        name: role
        for name, module in model.named_modules()
        if isinstance(role := getattr(module, "role", None), str)
    }
    roles: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        above = name.split(".")[:-1]
        paths = [".".join(above[:depth]) for depth in range(len(above), -1, -1)]
        usual = "backbone" if "backbone" in above else None
        role = next((module_roles[path] for path in paths if path in module_roles), usual)
        if role not in ROLES:
            raise ValueError(
                f"the trainable parameter '{name}' has no known role: give its module a `role` "
                f"({', '.join(ROLES)}) or freeze it"
            )
        roles[name] = role
    return roles


def parameter_groups(
    model: nn.Module, *, lr: dict[str, float], weight_decay: float, up_lr_ratio: float = 1.0
) -> list[dict[str, Any]]:
    """Return optimizer groups by role, with and without weight decay (`mttl.skills.weight_decay`).

    Second factors (`Inventory.second_factors`) have ``up_lr_ratio`` times the rate of their role.

    Raises:
        ValueError: If there are no trainable parameters, or one has no known role.
        ConfigError: If ``up_lr_ratio`` is not 1 but there are no trained second factors.
    """
    groups: dict[tuple[str, bool, bool], list[nn.Parameter]] = {}
    parameters = dict(model.named_parameters())
    for name, role in parameter_roles(model).items():
        decayed = role not in ROUTERS and decays(model, name)
        path, _, own = name.rpartition(".")
        factors = getattr(model.get_submodule(path), "second_factors", ())
        second = up_lr_ratio != 1 and own in factors
        groups.setdefault((role, decayed, second), []).append(parameters[name])
    if not groups:
        raise ValueError("the model has no trainable parameter")
    if up_lr_ratio != 1 and not any(second for *_, second in groups):
        raise ConfigError(
            f"up_lr_ratio ({up_lr_ratio:g}) needs trained low-rank skills (skills.kind lora); "
            "remove it"
        )
    return [
        {
            "name": (role if decayed or role in ROUTERS else f"{role} (no decay)")
            + " (second factors)" * second,
            "params": members,
            "lr": lr[role] * (up_lr_ratio if second else 1),
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for (role, decayed, second), members in groups.items()
    ]


def learning_rate_factor(
    schedule: str, warmup_steps: int, total_steps: int
) -> Callable[[int], float]:
    """Return the learning-rate factor as a function of the step.

    It rises linearly from 0 to 1 over ``warmup_steps``, and then stays (``"constant"``), falls
    linearly to 0 at ``total_steps``, or falls along half a cosine.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        if schedule == "linear":
            return 1 - progress
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        return 1.0

    return factor
