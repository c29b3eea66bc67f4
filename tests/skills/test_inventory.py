"""Sizes, the forms that are printed, and skills of tensors of any shape."""

import pytest
import torch
from torch import nn

from helpers.skills import INVENTORIES
from mttl.skills import KINDS, DenseInventory, LoRAInventory, SparseInventory

KINDS_WITH_HEADS = sorted(INVENTORIES)
K = 3


@pytest.mark.parametrize("kind", KINDS_WITH_HEADS)
def test_the_role_is_skills_and_the_printed_form_names_the_sizes(kind):
    inventory = INVENTORIES[kind](8, 12, K, 2)
    assert inventory.role == "skills"
    assert "in_features=8, out_features=12, n_skills=3, n_heads=2" in repr(inventory)
    if hasattr(inventory, "mix"):
        assert f"mix={inventory.mix}" in repr(inventory)


@pytest.mark.parametrize("kind", KINDS_WITH_HEADS)
def test_sizes_must_be_positive(kind):
    for name, sizes in {
        "in_features": (0, 12, K, 1),
        "out_features": (8, 0, K, 1),
        "n_skills": (8, 12, 0, 1),
        "n_heads": (8, 12, K, 0),
    }.items():
        with pytest.raises(ValueError, match=rf"{name} \(0\) must be at least 1"):
            INVENTORIES[kind](*sizes)


@pytest.mark.parametrize("kind", KINDS_WITH_HEADS)
def test_heads_must_divide_the_output(kind):
    with pytest.raises(ValueError, match=r"n_heads \(4\) must divide out_features \(6\)"):
        INVENTORIES[kind](8, 6, K, 4)


def test_heads_must_divide_the_input_only_where_it_is_cut():
    with pytest.raises(ValueError, match=r"n_heads \(4\) must divide in_features \(6\)"):
        LoRAInventory(6, 8, K, n_heads=4, mix="factors")
    LoRAInventory(6, 8, K, n_heads=4, mix="deltas")


# Tensors of any shape.


@pytest.mark.parametrize("layer", ["linear", "convolution"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_kaiming_draws_as_the_layers_of_pytorch_do(layer, kind):
    weight = nn.Linear(200, 60).weight if layer == "linear" else nn.Conv2d(32, 50, 3).weight
    settings = {"sparsity": 0.7} if kind == "sparse" else {}
    skills = KINDS[kind].of_tensor(weight.shape, K, init="kaiming", **settings)
    values = torch.cat([parameter.flatten() for parameter in skills.parameters()]).detach()
    assert values.abs().max() <= weight[0].numel() ** -0.5
    # Uniform draws, at least 10 000 of them: their spread is within 3 % with near certainty.
    assert float(values.std() / weight.detach().std()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_kaiming_leaves_vectors_at_zero(kind):
    skills = KINDS[kind].of_tensor((50,), K, init="kaiming")
    assert not any(parameter.any() for parameter in skills.parameters())


def test_kaiming_draws_both_sides_of_a_low_rank_skill():
    skills = LoRAInventory.of_tensor((100, 8, 5), K, rank=4, init="kaiming")
    assert skills.mix == "deltas"
    for side, fan_in in ((skills.down, 40), (skills.up, 4)):
        assert 0.95 * fan_in**-0.5 < side.abs().max() <= fan_in**-0.5
    assert not LoRAInventory.of_tensor((100, 8, 5), K).up.any()


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"init \('normal'\) must be one of zero, kaiming"):
        DenseInventory.of_tensor((3, 3), 2, init="normal")
    for sparsity in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"sparsity \({sparsity}\) must lie in \[0, 1\)"):
            SparseInventory.of_tensor((3,), 2, sparsity=sparsity)
    message = r"a tensor of shape \(3,\) has too few axes: LoRAInventory needs at least 2. Leave it"
    with pytest.raises(ValueError, match=message):
        LoRAInventory.of_tensor((3,), 2)
