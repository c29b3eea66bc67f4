"""One task's mixture in plain weights answers as the skilled model does."""

import copy
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES, batch, tiny_t5
from helpers.compare import relative_error
from helpers.skills import INVENTORIES, ROUTERS, Twice, skilled, skilled_at
from mttl.adaptation.modes import apply_mode
from mttl.merging.fold import average_mixing, fold, task_mixing, unfold
from mttl.skills import SkilledLinear
from mttl.skills.weights.supermask import SupermaskInventory

# Folded weights are rounded once more (6e-8 each) in every layer of two to four blocks.
ROUNDING = 1e-5
MASKS = partial(SupermaskInventory, threshold=0.0)  # they read the weight of an nn.Linear


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("family", "inventory"),
    [*product(BACKBONES, INVENTORIES), *product(("t5", "bart", "llama"), [MASKS])],
)
def test_the_plain_backbone_answers_as_the_task(family, inventory):
    model = skilled(BACKBONES[family](), inventory=inventory, n_heads=2)
    inputs = batch(4)
    expected = [model(torch.full((4,), task), **inputs).logits for task in range(3)]
    assert relative_error(expected[0], expected[1]) > 1e-2  # the tasks differ
    if inventory == "bitfit" and family in ("t5", "llama"):  # their layers have no bias
        with pytest.raises(ValueError, match="cannot be merged: the layer has no bias"):
            fold(model, task_mixing(model.router, 0))
        return
    for task in range(3):
        folded = fold(model, task_mixing(model.router, task))
        assert not any(isinstance(module, SkilledLinear) for module in folded.backbone.modules())
        assert relative_error(folded.backbone(**inputs).logits, expected[task]) < ROUNDING
        unfold(folded)


@pytest.mark.every(2)
@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_is_folded_as_it_answers(router):
    """In double precision: free coefficients add and take away six times a skill, and cancel."""
    n_heads = 1 if router == "hyperformer" else 2
    model = skilled(tiny_t5(), n_heads=n_heads, router=router).eval().double()
    inputs = batch(4)
    expected = [model(torch.full((4,), task), **inputs).logits for task in range(3)]
    for task in range(3):
        folded = fold(model, task_mixing(model.router, task))
        assert relative_error(folded.backbone(**inputs).logits, expected[task]) < 1e-11
        unfold(folded)


def test_it_is_saved_as_a_plain_model_and_unmerging_restores_every_bit(tmp_path):
    model = skilled(tiny_t5())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(torch.tensor([1, 2, 0]), **batch(3)).logits
    alone = model(torch.full((3,), 2), **batch(3)).logits
    folded = fold(model, task_mixing(model.router, 2))
    folded.backbone.save_pretrained(tmp_path)
    plain = type(folded.backbone).from_pretrained(tmp_path).eval()
    assert relative_error(plain(**batch(3)).logits, alone) < ROUNDING
    unfold(folded)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(model(torch.tensor([1, 2, 0]), **batch(3)).logits, expected)


def test_the_average_is_that_of_adaptation():
    model = skilled(tiny_t5(), n_heads=2)
    uniform = apply_mode(copy.deepcopy(model), "average", 1).eval()
    expected = uniform(torch.zeros(3, dtype=torch.long), **batch(3)).logits
    folded = fold(model, average_mixing(model.router))
    assert relative_error(folded.backbone(**batch(3)).logits, expected) < ROUNDING


def test_half_precision_is_rounded_once():
    model = skilled(tiny_t5(), train_backbone=False)
    path, layer = next(iter(model.skilled_layers().items()))
    model.backbone.bfloat16()
    for skilled_layer in model.skilled_layers().values():
        skilled_layer.inventory.float()
    mixing = task_mixing(model.router, 0)
    exact = layer.weight.float() + layer.inventory.delta(mixing[layer.group][None])[0]
    plain = fold(model, mixing).backbone.get_submodule(path)
    assert torch.equal(plain.weight, exact.bfloat16())
    assert not plain.weight.requires_grad


class Tied(nn.Module):
    """A layer whose weight is that of an embedding, as output heads have it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


def test_a_layer_at_two_paths_is_replaced_at_both():
    model = skilled_at(Twice(), "first")
    x = torch.randn(1, 3, 4)
    expected = model(torch.tensor([0]), x=x)
    folded = fold(model, average_mixing(model.router))
    assert relative_error(folded.backbone(x), expected) < ROUNDING
    unfold(folded)
    assert folded.backbone.first is folded.backbone.second
    assert torch.equal(model(torch.tensor([0]), x=x), expected)


def test_mistakes_are_named():
    model = skilled(tiny_t5())
    fold(model, average_mixing(model.router))
    with pytest.raises(ValueError, match="already merged; call `unfold`"):
        fold(model, average_mixing(model.router))
    tied = skilled_at(Tied(), "head")
    with pytest.raises(ValueError, match="'head', which shares its weight with 'table'"):
        fold(tied, average_mixing(tied.router))
    assert isinstance(tied.backbone.head, SkilledLinear)
    whole = skilled_at(Twice(), "first")
    numbers = torch.zeros(4, 4, dtype=torch.int8)
    whole.backbone.first.base.weight = nn.Parameter(numbers, requires_grad=False)
    with pytest.raises(ValueError, match=r"the weight of 'first' is torch.int8; load the"):
        fold(whole, average_mixing(whole.router))
