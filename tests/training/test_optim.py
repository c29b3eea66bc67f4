import pytest
import torch
from torch import nn
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from mttl.config.optim_schema import AdamW
from mttl.io.errors import ConfigError
from mttl.routing import PolytroponRouter, RoutingSlot
from mttl.skills import IA3Inventory, LoRAInventory, SkilledModel, attach_skills
from mttl.training.optim import (
    build_optimizer,
    learning_rate_factor,
    parameter_groups,
    parameter_roles,
    schedule_factor,
)

LR = {"skills": 1e-3, "router": 1e-1, "backbone": 1e-4}


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))])

    def forward(self, x):
        return self.blocks[0](x)


def skilled(train_backbone=False, kind=LoRAInventory):
    backbone = TwoLayers().requires_grad_(train_backbone)
    slot = RoutingSlot()
    attach_skills(backbone, lambda i, o: kind(i, o, 2), targets=["all"], slot=slot)
    return SkilledModel(backbone, PolytroponRouter(1, 3, 1, 2), slot)


def test_mistakes_are_named():
    model = skilled()
    model.extra = nn.Linear(2, 2)
    model.router.role = "navigator"
    with pytest.raises(ValueError, match=r"'router.logits' has no known role"):
        parameter_roles(model)
    with pytest.raises(ValueError, match="no trainable parameter"):
        parameter_groups(skilled().requires_grad_(False), lr=LR, weight_decay=0.0)
    optim = AdamW(kind="adamw", up_lr_ratio=16.0)
    with pytest.raises(ConfigError, match=r"up_lr_ratio \(16\) needs trained low-rank skills"):
        build_optimizer(optim, skilled(kind=IA3Inventory))


def test_two_speeds_and_weight_decay_by_role():
    groups = parameter_groups(skilled(train_backbone=True), lr=LR, weight_decay=0.3)
    found = {(g["name"], g["lr"], g["weight_decay"]) for g in groups}
    assert found == {
        ("router", 1e-1, 0.0),
        ("skills", 1e-3, 0.3),
        ("backbone", 1e-4, 0.3),
        ("backbone (no decay)", 1e-4, 0.0),
    }


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)],
)
def test_schedules_equal_those_of_transformers(kind, reference):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    expected = reference(optimizer, 6, 40).lr_lambdas[0]
    factor = learning_rate_factor(kind, 6, 40)
    # The reference rounds nothing: the formulas are the same.
    assert [factor(step) for step in range(41)] == pytest.approx([expected(s) for s in range(41)])
    # The warm-up is the fraction that was written.
    constant = AdamW(kind="adamw", schedule="constant", warmup=0.29)
    assert schedule_factor(constant, 100)(28) == 28 / 29


def test_second_factors_move_as_under_pefts_lora_plus():
    optimizers = pytest.importorskip("peft.optimizers")
    peft = pytest.importorskip("peft")
    model = skilled()
    base = nn.Sequential(nn.Linear(4, 4))
    theirs = peft.get_peft_model(base, peft.LoraConfig(r=16, target_modules=["0"]))
    layer, inventory = theirs.base_model.model[0], model.backbone.blocks[0][0].inventory
    first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        inventory.down[0], inventory.up[0] = first.t(), second
    expected = optimizers.create_loraplus_optimizer(
        theirs, torch.optim.AdamW, lr=1e-2, loraplus_lr_ratio=16.0, loraplus_weight_decay=0.1
    )
    found = build_optimizer(
        AdamW(kind="adamw", lr=1e-2, weight_decay=0.1, up_lr_ratio=16.0, router_lr=0.5), model
    )
    rates = {group["name"]: group["lr"] for group in found.param_groups}
    assert rates == {"router": 0.5, "skills": 1e-2, "skills (second factors)": 0.16}
    for step in range(3):
        first.grad, second.grad = torch.randn(first.shape), torch.randn(second.shape)
        inventory.down.grad = torch.zeros_like(inventory.down)
        inventory.up.grad = torch.zeros_like(inventory.up)
        inventory.down.grad[0], inventory.up.grad[0] = first.grad.t(), second.grad
        expected.step()
        found.step()
        # A fused kernel and a loop of operations round differently.
        torch.testing.assert_close(inventory.down[0], first.t(), msg=str(step))
        torch.testing.assert_close(inventory.up[0], second, msg=str(step))
