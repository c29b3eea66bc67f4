"""Inventories over all parameters of a module."""

import pytest
import torch
from torch import nn

from helpers.backbones import fill
from mttl.skills.composed.composed_model import ModuleInventory

K, T = 3, 2
KINDS = ["dense", "sparse", "lora"]


class Tower(nn.Module):
    """Layers at two depths, one that holds parameters beside its children, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 4))
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Conv1d(2, 3, 2), nn.LayerNorm(3))
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight


def merged(inventory, base, weights):
    return inventory.merge(dict(base.named_parameters()), weights)


@pytest.mark.parametrize("kind", KINDS)
def test_one_group_for_the_model_or_one_per_layer_with_skills(kind):
    base = Tower()
    whole = ModuleInventory(base, K, kind=kind)
    assert (whole.groups, whole.n_groups) == (("model",), 1)
    layers = ModuleInventory(base, K, kind=kind, granularity="layer")
    norm = [] if kind == "lora" else ["block.1"]  # it has vectors only
    assert list(layers.groups) == ["", "first", "block.0", *norm]


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_reads_the_row_of_its_layer(kind):
    base = Tower()
    inventory = ModuleInventory(base, K, kind=kind, granularity="layer")
    fill(inventory)
    weights = torch.rand(inventory.n_groups, T, 1, K)
    before = merged(inventory, base, weights)
    weights[1] += 1.0
    after = merged(inventory, base, weights)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"first.weight"} | ({"first.bias"} if kind != "lora" else set())


def test_low_rank_skills_leave_vectors_alone():
    base = Tower()
    inventory = ModuleInventory(base, K, kind="lora", rank=2, init="kaiming")
    found = merged(inventory, base, torch.rand(1, T, 1, K))
    for name, parameter in base.named_parameters():
        unchanged = torch.equal(found[name][0], parameter)
        assert unchanged == (parameter.ndim < 2)


def test_tensors_are_saved_under_the_paths_of_the_parameters():
    inventory = ModuleInventory(Tower(), K, kind="sparse", sparsity=0.5)
    assert {name.rpartition(".")[0] for name in inventory.state_dict()} == {
        f"skills.{name}" for name, _ in Tower().named_parameters()
    }
    assert inventory.state_dict()["skills.first.weight.values"].shape == (K, 8)
    assert inventory.state_dict()["skills.first.weight.indices"].shape == (K, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_skills_have_the_dtype_of_their_parameters(dtype):
    base = Tower().to(dtype)
    inventory = ModuleInventory(base, K, kind="sparse")
    for name, tensor in inventory.state_dict().items():
        assert tensor.dtype == (torch.int64 if name.endswith("indices") else dtype)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"granularity \('block'\) must be one of model, layer"):
        ModuleInventory(Tower(), K, kind="dense", granularity="block")
    expected = "the LayerNorm has no parameter that can have skills of kind 'lora'"
    with pytest.raises(ValueError, match=expected):
        ModuleInventory(nn.LayerNorm(3), K, kind="lora")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank'"):
        ModuleInventory(Tower(), K, kind="dense", rank=2)
