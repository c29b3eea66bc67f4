"""Head masks, beside attention whose heads are multiplied one by one."""

from typing import Any

import pytest
import torch

from helpers.backbones import BACKBONES, batch
from helpers.compare import relative_error
from helpers.skills import attach_kind
from mttl.routing import AverageRouter, RoutingSlot
from mttl.skills import SkilledModel


@pytest.mark.parametrize("family", BACKBONES)
def test_the_slope_of_a_gate_is_the_importance_of_its_head(family: str) -> None:
    """|dL/dξ| = |Att(x)ᵀ dL/dAtt(x)| of Michel et al., from hooks on the output projections."""
    backbone, slot = BACKBONES[family]().requires_grad_(False), RoutingSlot()
    where = {"targets": ["attention"], "slot": slot}
    attachment = attach_kind(backbone, "head_mask, soft", n_skills=1, **where)
    model, read = SkilledModel(backbone, AverageRouter(len(attachment.groups), 1, 1, 1), slot), {}
    for path, layer in model.skilled_layers().items():

        def keep(module, inputs, path=path):
            read[path] = inputs[0]
            inputs[0].retain_grad()

        layer.base.register_forward_pre_hook(keep)
    model(torch.tensor([0]), **batch(1)).loss.backward()
    for path, layer in model.skilled_layers().items():
        importance = (read[path] * read[path].grad).unflatten(-1, (4, -1)).sum((0, 1, 3))
        slope = 1 - torch.sigmoid(torch.tensor(1.0))  # of σ(s + d) / σ(s) in d
        inventory: Any = layer.inventory
        assert relative_error(inventory.logits.grad[0], slope * importance) < 1e-4


@pytest.mark.parametrize(
    ("family", "target", "n_layers"),
    [
        *[("t5", "all", 6), ("bart", "cross_attention", 2), ("llama", "self_attention", 2)],
        *[("t5", "encoder.*", 2), ("gpt2", "h.0.attn.c_proj", 1)],
    ],
)
def test_targets(family: str, target: str, n_layers: int) -> None:
    backbone = BACKBONES[family]()
    where = {"targets": [target], "slot": RoutingSlot()}
    attachment = attach_kind(backbone, "head_mask", n_skills=2, **where)
    assert len(attachment.layers) == n_layers
    assert {row.n_parameters for row in attachment.layers} == {2 * 4}
