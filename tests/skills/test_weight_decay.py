"""Weight decay is for weights, whatever the shape they are kept in."""

import pytest
import torch
from torch import nn
from transformers import Trainer

from helpers.backbones import BACKBONES
from mttl.skills.weight_decay import decays


class Stacks(nn.Module):
    """Weights in a vector, and biases in a matrix."""

    undecayed = ("biases",)

    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(7))
        self.biases = nn.Parameter(torch.zeros(3, 7))


def decayed(module):
    return {name for name, _ in module.named_parameters() if decays(module, name)}


@pytest.mark.parametrize("family", BACKBONES)
def test_of_a_backbone_decay_is_for_what_transformers_says(family):
    backbone = BACKBONES[family]()
    expected = set(Trainer.get_decay_parameter_names(None, backbone))
    named = {name for name, _ in backbone.named_parameters()}  # tied ones have one name
    assert decayed(backbone) == expected & named
    assert len(decayed(backbone)) > 5


def test_a_table_of_biases_is_a_bias():
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert not decays(BACKBONES["t5"](), name)


def test_a_module_may_say_what_its_parameters_are():
    model = nn.Sequential(Stacks(), nn.Linear(2, 2))
    assert decayed(model) == {"0.values", "1.weight"}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Conv2d(1, 2, 3), {"weight"}),
        (nn.GRU(2, 3), {"weight_ih_l0", "weight_hh_l0"}),
        (nn.MultiheadAttention(4, 2), {"in_proj_weight", "out_proj.weight"}),
        (nn.GroupNorm(2, 4), set()),
        (nn.Embedding(3, 2), {"weight"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_of_pytorch(module, expected):
    assert decayed(module) == expected
