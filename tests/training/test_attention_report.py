"""The mean attention of a task equals a loop over its rows and tokens."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from helpers.backbones import BACKBONES, fill
from mttl.models.backbone import load_tokenizer
from mttl.routing import AverageRouter, RoutingSlot
from mttl.skills import LoRAInventory, SkilledModel, attach_skills
from mttl.skills.attention import AttendedInventory
from mttl.training.attention_report import attention_by_task, has_attention
from mttl.training.text_to_text import TextToTextModule

ROWS = {
    "task_id": [0, 1, 0, 1, 0],
    "input_ids": [[5, 6], [7, 8, 9], [4], [10, 11], [9, 9, 9]],
    "labels": [[7, 1], [8, 1], [9, 9, 1], [5, 1], [6, 1]],
}


def module_of(family: str, granularity: str = "linear", *, fused: bool = True) -> TextToTextModule:
    backbone, slot = BACKBONES[family]().requires_grad_(False), RoutingSlot()

    def make(n_in: int, n_out: int):
        skills = LoRAInventory(n_in, n_out, 3, rank=2)
        return AttendedInventory(skills) if fused else skills

    attachment = attach_skills(
        backbone, make, targets=["attention"], slot=slot, granularity=granularity
    )
    model = SkilledModel(backbone, AverageRouter(len(attachment.groups), 2, 1, 3), slot)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    # In float64: a softmax of large scores turns their rounding into a relative error of a weight.
    return TextToTextModule(model.double(), load_tokenizer("byte"), {"a": "EM", "b": "EM"})


@pytest.mark.parametrize("granularity", ["linear", "model"])
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_equals_a_loop_over_rows(family: str, granularity: str) -> None:
    module = module_of(family, granularity)
    found = attention_by_task(module, Dataset.from_dict(ROWS))
    model = module.model.eval()
    totals = torch.zeros(model.router.n_groups, 2, 3)
    for task_id, inputs, labels in zip(*ROWS.values(), strict=True):
        kept, handles = {}, []
        for path, layer in model.skilled_layers().items():

            def keep(_, __, weights, path=path, kept=kept):
                kept[path] = weights.detach()

            handles.append(layer.inventory.attention.register_forward_hook(keep))
        texts = (
            {"input_ids": torch.tensor([inputs]), "labels": torch.tensor([labels])}
            if family == "t5"
            else {"input_ids": torch.tensor([inputs + labels])}
        )
        model(torch.tensor([task_id]), **texts)
        for handle in handles:
            handle.remove()
        for path, layer in model.skilled_layers().items():
            totals[layer.group, task_id] += kept[path].sum((0, 1))
    # Float32 sums of some dozen numbers.
    np.testing.assert_allclose(found, totals / totals.sum(-1, keepdim=True), rtol=1e-5)


def test_attention_is_told_from_mixing() -> None:
    assert has_attention(module_of("t5").model)
    assert not has_attention(module_of("t5", fused=False).model)
