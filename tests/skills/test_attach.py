import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES
from mttl.routing import RoutingSlot
from mttl.skills import LoRAInventory, SkilledLinear, attach_skills


def make(n_in, n_out):
    return LoRAInventory(n_in, n_out, 2, rank=2)


def attach(backbone, targets, granularity="linear", make=make):
    return attach_skills(
        backbone, make, targets=targets, slot=RoutingSlot(), granularity=granularity
    )


@pytest.mark.parametrize(
    ("name", "attention", "mlp", "everything"),
    # per block: 4 projections (8 with cross-attention), 2 feed-forward layers (3 gated)
    [("t5", 24, 8, 32), ("bart", 24, 8, 32), ("llama", 8, 6, 14), ("gpt2", 4, 4, 8)],
)
def test_words_find_the_projections(name, attention, mlp, everything):
    for targets, count in ((["attention"], attention), (["mlp"], mlp), (["all"], everything)):
        attachment = attach(BACKBONES[name](), targets)
        assert len(attachment.layers) == count
        assert not any("lm_head" in layer.path for layer in attachment.layers)
    assert len(attach(BACKBONES[name](), ["attention", "mlp"]).layers) == everything


def test_patterns_match_the_end_of_a_path():
    paths = [
        layer.path for layer in attach(BACKBONES["t5"](), ["decoder.*.EncDecAttention.q"]).layers
    ]
    assert paths == [f"decoder.block.{i}.layer.1.EncDecAttention.q" for i in (0, 1)]
    assert len(attach(BACKBONES["llama"](), ["q_proj", "v_proj"]).layers) == 4


@pytest.mark.parametrize(
    ("granularity", "groups"),
    [
        ("model", ["model"]),
        ("stack", ["encoder", "decoder"]),
        ("block", ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]),
        (
            "layer",
            [
                *(f"encoder.block.{i}.layer.0.SelfAttention" for i in (0, 1)),
                *(
                    f"decoder.block.{i}.layer.{j}.{kind}"
                    for i in (0, 1)
                    for j, kind in enumerate(("SelfAttention", "EncDecAttention"))
                ),
            ],
        ),
    ],
)
def test_groups_follow_the_granularity(granularity, groups):
    assert list(attach(BACKBONES["t5"](), ["attention"], granularity).groups) == groups


def test_base_layers_keep_their_weights_and_report_counts():
    backbone = BACKBONES["t5"]()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    attachment = attach(backbone, ["attention"])
    after = {name.replace(".base.", "."): value for name, value in backbone.state_dict().items()}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    row = next(row for row in attachment.summary() if row[0].startswith("encoder"))
    # 2 skills of rank 2 with 16 features in and out, in two blocks
    assert row == ("encoder.block.*.layer.*.SelfAttention.q", 2, "16 -> 16", 2 * 2 * 2 * 32)


def test_no_targets():
    with pytest.raises(ValueError, match="targets must name at least one layer"):
        attach(BACKBONES["llama"](), [])


def test_unknown_granularity():
    with pytest.raises(ValueError, match=r"granularity \('fine'\) must be one of model, stack"):
        attach(BACKBONES["llama"](), ["all"], "fine")


def test_an_error_leaves_the_backbone_as_it_was():
    backbone = BACKBONES["t5"]()
    before = [type(module) for module in backbone.modules()]

    def picky(n_in, n_out):
        # divides the attention's 16 features, not the 24 of the feed-forward blocks
        return LoRAInventory(n_in, n_out, 2, n_heads=16)

    with pytest.raises(ValueError, match=r"': n_heads \(16\) must divide out_features \(24\)"):
        attach(backbone, ["all"], make=picky)
    assert [type(module) for module in backbone.modules()] == before


def test_skills_are_attached_once():
    backbone = BACKBONES["t5"]()
    attach(backbone, ["attention"])
    with pytest.raises(ValueError, match="the backbone has skills already"):
        attach(backbone, ["mlp"])


def test_a_layer_at_two_paths_keeps_one_inventory():
    shared = nn.Linear(4, 4)
    module = nn.Sequential(shared, nn.ReLU(), shared)
    attachment = attach(module, ["all"])
    assert len(attachment.layers) == 1
    assert module[0] is module[2]
    assert isinstance(module[0], SkilledLinear)
