"""Targets, groups and reports on four families of language models."""

from functools import partial

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES, batch, tiny_t5
from helpers.experts import token_model
from helpers.skills import skilled
from mttl.models.backbone import build_random
from mttl.routing import RoutingSlot
from mttl.skills import LoRAInventory, SkilledLinear, attach_skills


def attach(backbone, targets=("all",), granularity="linear", make=None):
    make = make or (lambda i, o: LoRAInventory(i, o, 2, rank=2))
    return attach_skills(
        backbone, make, targets=targets, slot=RoutingSlot(), granularity=granularity
    )


@pytest.mark.parametrize(
    ("name", "everything"), [("t5", 32), ("bart", 32), ("llama", 14), ("gpt2", 8)]
)
def test_words_find_the_projections(name, everything):
    """Attention and feed-forward layers, of which `test_targets.py` counts each; not the head."""
    paths = [layer.path for layer in attach(BACKBONES[name](), ["attention", "mlp"]).layers]
    assert paths == [layer.path for layer in attach(BACKBONES[name]()).layers]
    assert len(paths) == everything
    assert not any("lm_head" in path for path in paths)


def test_patterns_match_the_end_of_a_path():
    paths = [
        layer.path for layer in attach(BACKBONES["t5"](), ["decoder.*.EncDecAttention.q"]).layers
    ]
    assert paths == [f"decoder.block.{i}.layer.1.EncDecAttention.q" for i in (0, 1)]
    assert len(attach(BACKBONES["llama"](), ["q_proj", "v_proj"]).layers) == 4


STACKS = ("encoder", "decoder")
GROUPS = [
    ("t5", "model", ["model"]),
    ("t5", "stack", ["encoder", "decoder"]),
    ("bart", "stack", ["encoder", "decoder"]),
    ("llama", "stack", ["model"]),
    ("gpt2", "stack", ["model"]),
    ("bart", "block", [f"model.{stack}.layers.{i}" for stack in STACKS for i in (0, 1)]),
    ("t5", "block", [f"{stack}.block.{i}" for stack in STACKS for i in (0, 1)]),
    ("llama", "block", ["model.layers.0", "model.layers.1"]),
    ("gpt2", "block", ["transformer.h.0", "transformer.h.1"]),
    ("llama", "layer", [f"model.layers.{i}.{k}" for i in (0, 1) for k in ("self_attn", "mlp")]),
    ("gpt2", "layer", [f"transformer.h.{i}.{kind}" for i in (0, 1) for kind in ("attn", "mlp")]),
]


@pytest.mark.parametrize(("family", "granularity", "groups"), GROUPS)
def test_names_of_groups(family, granularity, groups):
    attachment = attach(BACKBONES[family](), granularity=granularity)
    assert list(attachment.groups) == groups


@pytest.mark.parametrize("granularity", ["model", "stack", "block", "layer", "linear"])
@pytest.mark.parametrize("family", BACKBONES)
def test_layers_hold_the_index_of_their_group(family, granularity):
    backbone = BACKBONES[family]()
    attachment = attach(backbone, granularity=granularity)
    for row in attachment.layers:
        layer = backbone.get_submodule(row.path)
        assert isinstance(layer, SkilledLinear)
        assert attachment.groups[layer.group] == row.group
        inventory = layer.inventory
        assert inventory.in_features == row.in_features
        assert inventory.out_features == row.out_features
        assert row.n_parameters == 2 * 2 * (row.in_features + row.out_features)
    assert len(set(attachment.groups)) == len(attachment.groups)


def test_the_report_counts_layers_of_one_kind_together():
    attachment = attach(BACKBONES["llama"](), ["attention", "down_proj"])
    assert attachment.summary() == [
        ("model.layers.*.self_attn.q_proj", 2, "16 -> 16", 2 * 2 * 2 * 32),
        ("model.layers.*.self_attn.k_proj", 2, "16 -> 8", 2 * 2 * 2 * 24),
        ("model.layers.*.self_attn.v_proj", 2, "16 -> 8", 2 * 2 * 2 * 24),
        ("model.layers.*.self_attn.o_proj", 2, "16 -> 16", 2 * 2 * 2 * 32),
        ("model.layers.*.mlp.down_proj", 2, "24 -> 16", 2 * 2 * 2 * 40),
    ]
    assert sum(row[3] for row in attachment.summary()) == sum(
        row.n_parameters for row in attachment.layers
    )


def test_overlapping_targets_attach_once_in_the_order_of_the_backbone():
    both = attach(tiny_t5(), ["wo", "attention", "SelfAttention.q"])
    paths = [row.path for row in both.layers]
    assert len(set(paths)) == len(paths)
    order = [path for path, _ in tiny_t5().named_modules()]
    assert paths == sorted(paths, key=order.index)


def test_the_skills_live_where_the_layer_lives_and_keep_their_dtype():
    backbone = tiny_t5().to(torch.bfloat16)
    attach(backbone, ["q"])
    layer = backbone.get_submodule("encoder.block.0.layer.0.SelfAttention.q")
    assert layer.inventory.down.dtype == torch.float32
    assert layer.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("targets", "granularity", "message"),
    [
        ([], "linear", "targets must name at least one layer"),
        (["all"], "fine", r"granularity \('fine'\) must be one of model, stack"),
        (["mlp", "attentoin"], "linear", r"'attentoin' matches no.*Did you mean 'attention'"),
        (["q_proj"], "linear", "its linear layers: k, lm_head, o, q, v, wi, wo$"),
        # divides the attention's 16 features, not the 24 of the feed-forward blocks
        (["all"], "layer", r"': n_heads \(16\) must divide out_features \(24\)"),
    ],
)
def test_an_error_leaves_the_backbone_as_it_was(targets, granularity, message):
    backbone = tiny_t5()
    before = [type(module) for module in backbone.modules()]

    def picky(n_in, n_out):
        return LoRAInventory(n_in, n_out, 2, n_heads=16)

    with pytest.raises(ValueError, match=message):
        attach(backbone, targets, granularity, picky)
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


def test_a_plain_module_without_blocks_takes_patterns():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert attach(module, ["0"]).groups == ("0",)
    assert type(module[2]) is nn.Linear


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 4}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 32}
FUSED = {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
OTHER_FAMILIES = {
    "gpt_neox": (SIZES | {"intermediate_size": 24}, FUSED),
    "bloom": ({"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 4}, FUSED),
    "opt": (
        SIZES | {"ffn_dim": 24, "word_embed_proj_dim": 16},
        {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"},
    ),
}


@pytest.mark.parametrize(
    ("family", "experts"), [("gpt_neox", False), ("bloom", False), ("opt", False), ("opt", True)]
)
def test_each_row_of_other_families_answers_as_alone(family, experts):
    """OPT's feed-forward layers see the tokens of all rows in one list."""
    sizes, names = OTHER_FAMILIES[family]
    backbone, made = build_random(family, sizes).eval(), partial(LoRAInventory, rank=2)
    if experts:
        model = token_model(backbone, targets=["mlp"])
    else:
        model = skilled(backbone, inventory=made, router="polytropon-plain")
        paths = model.skilled_layers()
        assert {path.rpartition(".")[2] for path in paths} == names
        assert len(paths) == 2 * len(names)
    model, inputs, ids = model.eval(), batch(3), torch.tensor([2, 0, 1])
    together = model(ids, **inputs).logits
    prompts = inputs["input_ids"]
    answers = model.generate(ids, input_ids=prompts, max_new_tokens=4, do_sample=False)
    for row in range(3):
        rows = {key: value[row : row + 1] for key, value in inputs.items()}
        alone = model(ids[row : row + 1], **rows).logits
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)
        found = model.generate(
            ids[row : row + 1], input_ids=prompts[row : row + 1], max_new_tokens=4, do_sample=False
        )
        assert torch.equal(answers[row, : found.shape[1]], found[0])
