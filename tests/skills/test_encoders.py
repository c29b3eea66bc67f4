"""Skills on encoders: BERT and models like it, each with an attachment point of every kind."""

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.adapterhub import adapted, adapterhub
from helpers.compare import relative_error
from helpers.encoders import ENCODERS, tiny_encoder
from helpers.skills import kind_class, skilled
from mttl.routing import AverageRouter
from mttl.skills import AdapterInventory, SkilledModel

KINDS = ("lora-factors", "ia3", "head_mask, soft", "norm", "prefix", "prompt", "ladder")
KINDS += ("adapter, behind", "adapter, outputs")
# DeBERTa projects its relative positions, which belong to no row, and has no attention interface.
WITHOUT = {("deberta-v2", kind) for kind in ("lora-factors", "ia3", "prefix")}
TASK_IDS = torch.tensor([2, 0, 1, 0])
N_WORDS = 4  # of the second row, which is padded
ROUNDING = 1e-5  # float32


def inputs() -> dict[str, Tensor]:
    ids = torch.randint(3, 40, (4, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, N_WORDS:] = ids[1, N_WORDS:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def placed(encoder: str, kind: str) -> SkilledModel:
    several = kind_class(kind).attachment_point in ("linear", "block")
    targets = ["attention", "mlp"] if several else ["attention"]
    return skilled(tiny_encoder(encoder), inventory=kind, targets=targets)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_fresh_skills_change_nothing_and_each_skill_learns(encoder: str, kind: str) -> None:
    if (encoder, kind) in WITHOUT:
        pytest.skip("refused, below")
    model, given = placed(encoder, kind), inputs()
    inventories: Any = [layer.inventory for layer in model.skilled_layers().values()]
    logits = model(TASK_IDS, **given).logits
    logits.square().sum().backward()
    for inventory in inventories:
        for name, value in inventory.named_parameters():
            by_skill = value.grad.flatten(1).any(1) if len(value) == inventory.n_skills else [True]
            assert all(by_skill), name
    own = {name: value[1:2, :N_WORDS] for name, value in given.items()}
    alone = model(TASK_IDS[1:2], **own).logits
    assert relative_error(logits[1:2, :N_WORDS], alone) < ROUNDING
    for inventory in inventories:
        inventory.reset_parameters()
    plain = tiny_encoder(encoder)(**given).logits
    assert plain.shape == logits.shape
    assert relative_error(logits, plain) > 100 * ROUNDING
    if kind != "prompt":  # which attention reads, whatever it is
        found, mask = model(TASK_IDS, **given).logits, given["attention_mask"].bool()
        assert relative_error(found[mask], plain[mask]) < ROUNDING


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("lora-factors", "received 1 rows for 4 task ids"),
        ("prefix", "DebertaV2ForMaskedLM to use transformers' attention interface"),
    ],
)
def test_what_deberta_cannot_have_is_refused(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        placed("deberta-v2", kind)(TASK_IDS, **inputs())


class Theirs(nn.Module):
    """The second part of a block, as AdapterHub's `BertSelfOutput` and `BertOutput`."""

    def __init__(self, output: Any, adapter: nn.Module, parts: dict[str, Tensor]) -> None:
        super().__init__()
        self.output, self.adapter, self.parts = output, adapter, parts

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return adapted(self.adapter, self.parts, x, self.output.dense(y), self.output.LayerNorm)


@pytest.mark.parametrize("encoder", ["bert", "roberta"])
def test_adapters_are_where_adapterhub_has_them(encoder: str) -> None:
    """Houlsby's adapters, in front of the residual connection and the norm."""
    hub = adapterhub()
    config = hub.configuration.DoubleSeqBnConfig()
    made = partial(AdapterInventory, hidden_features=5, parallel=False, activation="silu")
    sizes = {"n_tasks": 1, "n_skills": 1}
    model = skilled(tiny_encoder(encoder), inventory=made, router=AverageRouter, **sizes)
    theirs = tiny_encoder(encoder)
    for path, layer in model.skilled_layers().items():
        blocks: Any = layer.inventory.blocks
        parts = {
            "adapter_down.0.weight": blocks.up[0],
            "adapter_down.0.bias": blocks.up_bias[0],
            "adapter_up.weight": blocks.down[0],
            "adapter_up.bias": blocks.down_bias[0],
        }
        above = theirs.get_submodule(path.rpartition(".")[0])
        above.output = Theirs(above.output, hub.modeling.Adapter("one", 16, 5, config), parts)
    given, task_ids = inputs(), torch.zeros(4, dtype=torch.long)
    expected = theirs(**given).logits
    assert relative_error(model(task_ids, **given).logits, expected) < ROUNDING
    assert relative_error(tiny_encoder(encoder)(**given).logits, expected) > 100 * ROUNDING
