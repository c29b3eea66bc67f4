"""Weight decay is for weights, whatever the shape they are kept in."""

import pytest
import torch
from torch import nn
from transformers import Trainer

from helpers.backbones import BACKBONES
from mttl.plugins.parts import PARTS
from mttl.skills import KINDS
from mttl.skills.blocks.feed_forward_experts import FeedForwardExperts
from mttl.skills.composed.composed_model import ModuleInventory
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


BIASES = ("up_bias", "down_bias")
# What is a bias or a scale. Of a kind that is not here, that is a number of each skill's.
VECTORS = {
    "ia3": {"difference"},
    "adapter": {"blocks.up_bias", "blocks.down_bias"},
    "bitfit": {"bias"},
    "norm": {"gain", "bias"},
    "head_mask": {"logits"},
    "prefix": {"gate"},
    "ipt": {"inner_bias", "outer_bias"},
    "compacter": {"down_bias", "up_bias"},
    "sparse_adapter": {"down_bias", "up_bias"},
    "ladder": {"gates"},
    "invertible": {f"{part}.{bias}" for part in ("first", "second") for bias in BIASES},
    "intrinsic": {"scales"},
    "mtl_lora": {"transforms", "logits"},
    "dora": {"magnitude"},
    "vera": {"inner", "outer"},
    "diff_pruning": {"logits"},
}


@pytest.mark.parametrize("kind", PARTS["skills"])
def test_of_skills_decay_is_for_all_but_biases_and_scales(kind):
    more = (2,) if kind in ("head_mask", "norm", "prefix", "ladder") else ()
    settings = {"n_products": 2} if kind == "compacter" else {}
    skills = KINDS[kind](4, 4, 3, *more, **settings)
    named = dict(skills.named_parameters())
    numbers = {name for name, values in named.items() if values.ndim == 1}
    assert named.keys() - decayed(skills) == VECTORS.get(kind, numbers)
    assert VECTORS.get(kind, numbers) <= named.keys()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "composed" in KINDS[kind].uses])
def test_a_change_of_a_bias_is_a_bias(kind):
    """Dense and sparse changes of biases and norms are stacked into matrices, or flattened."""
    base = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm(4), nn.GRU(4, 3), Stacks())
    inventory = ModuleInventory(base, 2, kind=kind)
    changed = {
        name: name.removeprefix("skills.").rpartition(".")[0]
        for name, _ in inventory.named_parameters()
    }
    expected = decayed(base)
    assert len(expected) == 4
    for name, tensor in changed.items():
        assert decays(inventory, name) == (tensor in expected), name


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Conv2d(1, 2, 3), {"weight"}),
        (nn.GRU(2, 3), {"weight_ih_l0", "weight_hh_l0"}),
        (nn.MultiheadAttention(4, 2), {"in_proj_weight", "out_proj.weight"}),
        (nn.GroupNorm(2, 4), set()),
        (nn.Embedding(3, 2), {"weight"}),
        (FeedForwardExperts(4, 8, 6, 3, bias=True), {"up", "down"}),
        (FeedForwardExperts(4, 8, 6, 3, gated=True, bias=True), {"up", "down"}),
        # A module may say what its parameters are.
        (nn.Sequential(Stacks(), nn.Linear(2, 2)), {"0.values", "1.weight"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_of_layers(module, expected):
    assert decayed(module) == expected
