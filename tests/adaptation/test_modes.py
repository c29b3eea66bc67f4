"""Adaptation to new tasks trains what it names and nothing else."""

import copy
from typing import get_args

import pytest
import torch
from torch import Tensor

from helpers.backbones import tiny_t5
from helpers.skills import INVENTORIES, LEARNED, skilled
from mttl.adaptation.modes import TRAINED_ROLES, apply_mode
from mttl.config.optim_schema import AdamW
from mttl.config.section import AdaptMode
from mttl.routing import PolytroponRouter
from mttl.skills import SkilledModel
from mttl.training.optim import build_optimizer

MODES = get_args(AdaptMode)
TASK_IDS = torch.tensor([0, 1, 1])
INPUTS = {
    "input_ids": torch.arange(15).view(3, 5) % 11 + 2,
    "labels": torch.arange(9).view(3, 3) % 7 + 2,
}


def role_of(name: str) -> str:
    """Return the role by the place of a tensor, independently of `module.role`."""
    if name.startswith("router."):
        return "router"
    return "skills" if ".inventory." in name else "backbone"


def train(model: SkilledModel, n_steps: int = 2) -> None:
    optimizer = build_optimizer(AdamW(kind="adamw", lr=0.01, router_lr=0.1), model)
    model.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(TASK_IDS, **INPUTS).loss.backward()
        optimizer.step()


def snapshot(model: SkilledModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_every_mode_has_roles() -> None:
    assert set(TRAINED_ROLES) == set(MODES)


@pytest.mark.parametrize("router", LEARNED)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "zero_shot"])
def test_exactly_the_named_tensors_change(mode: AdaptMode, router: str) -> None:
    model = apply_mode(skilled(tiny_t5(), router=router), mode, 2)
    if isinstance(model.router, PolytroponRouter):  # a rounded row may use no skill, and train none
        model.router.logits.data.abs_()
    before = snapshot(model)
    train(model)
    after = model.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    parameters = dict(model.named_parameters(remove_duplicate=False))  # tied ones by every name
    assert changed == {name for name in parameters if role_of(name) in TRAINED_ROLES[mode]}


@pytest.mark.parametrize("mode", MODES)
def test_adapting_alone_changes_no_skill_but_those_from_scratch(mode: AdaptMode) -> None:
    model = skilled(tiny_t5())
    before = snapshot(model)
    after = apply_mode(model, mode, 2).state_dict()
    for name, value in before.items():
        if role_of(name) == "backbone" or (role_of(name) == "skills" and mode != "from_scratch"):
            assert torch.equal(after[name], value), name
    assert model.router.n_tasks == 2


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_from_scratch_is_the_bare_backbone_at_first(inventory: str) -> None:
    model = skilled(tiny_t5(), inventory=inventory)
    bare = copy.deepcopy(model)
    for layer in bare.skilled_layers().values():
        for parameter in layer.inventory.parameters():
            torch.nn.init.zeros_(parameter)
    apply_mode(model, "from_scratch", 2).eval()
    expected = bare.eval()(TASK_IDS, **INPUTS).logits
    assert torch.equal(model(TASK_IDS, **INPUTS).logits, expected)


def test_router_only_equals_a_loop_over_the_same_logits() -> None:
    """By hand: one tensor of logits, plain gradient descent, sigmoid and row sums."""
    model = apply_mode(skilled(tiny_t5(), router="polytropon-plain"), "router_only", 2)
    model.train()
    logits = model.router.logits.detach().clone().requires_grad_()
    reference = copy.deepcopy(model)
    for _ in range(3):
        active = logits[:, TASK_IDS].sigmoid()
        routing = reference.route(TASK_IDS)
        routing.weights = (active / active.sum(-1, keepdim=True)).unbind(0)
        with reference.slot.use(routing):
            expected = reference.backbone(**INPUTS).loss
        (gradient,) = torch.autograd.grad(expected, [logits])
        with torch.no_grad():
            logits -= 0.5 * gradient
        model.zero_grad()
        loss = model(TASK_IDS, **INPUTS).loss
        loss.backward()
        with torch.no_grad():
            model.router.logits -= 0.5 * model.router.logits.grad
        torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.router.logits.detach(), logits.detach())


@pytest.mark.parametrize("router", ["average", "expert"])
def test_a_router_without_parameters_cannot_be_trained_alone(router: str) -> None:
    with pytest.raises(ValueError, match="has no parameters"):
        apply_mode(skilled(tiny_t5(), router=router), "router_only", 2)


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"mode \('frozen'\) must be one of zero_shot"):
        apply_mode(skilled(tiny_t5()), "frozen")  # type: ignore[arg-type]
