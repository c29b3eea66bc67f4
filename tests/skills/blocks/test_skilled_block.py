"""Adapters beside and behind whole blocks of language models, beside hooks on the bare backbone."""

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES, batch, fill, tiny_bart, tiny_llama, tiny_t5
from helpers.compare import assert_same, relative_error
from helpers.skills import attach_kind, skilled, spread
from mttl.routing import PolytroponRouter, RoutingSlot
from mttl.skills import AdapterInventory, SkilledModel
from mttl.skills.skilled_layer import SkilledBlock

K = 3


def attach(backbone, **where):
    settings = {"targets": ("attention", "mlp"), "slot": RoutingSlot()} | where
    return attach_kind(backbone, "adapter, behind", n_skills=K, **settings)


@pytest.mark.parametrize("family", BACKBONES)
def test_words_find_the_blocks(family):
    # per block: one attention (two with cross-attention) and one feed-forward network
    n_attention = 6 if family in ("t5", "bart") else 2
    n_mlp = 4 if family in ("t5", "bart") else 2
    for targets, n in (("attention", n_attention), ("mlp", n_mlp), ("all", n_attention + n_mlp)):
        made = attach(BACKBONES[family](), targets=[targets])
        assert len(made.layers) == n
        assert {(row.in_features, row.out_features) for row in made.layers} == {(16, 16)}


def test_patterns_groups_and_what_is_unknown():
    made = attach(tiny_t5(), targets=["decoder.*.EncDecAttention"], granularity="layer")
    assert made.groups == tuple(f"decoder.block.{i}.layer.1.EncDecAttention" for i in (0, 1))
    made = attach(tiny_bart(), granularity="block")
    assert made.groups[0] == "model.encoder.layers.0"
    with pytest.raises(ValueError, match=r"'q_proj' matches no block.*its blocks: mlp, self_attn"):
        attach(tiny_llama(), targets=["q_proj"])


def hooked(backbone, model):
    """Put each layer's adapters of one task on a bare backbone, as hooks."""
    for path, layer in model.skilled_layers().items():
        inventory, weights = layer.inventory, model.router.matrix()[layer.group, 1, 0]
        block = backbone.get_submodule(path)
        last = block
        if path.endswith("fc1"):  # a block that is a part of a larger layer
            last = backbone.get_submodule(path.replace("fc1", "fc2"))
        reads = []

        def note(_, args, kwargs, reads=reads):
            reads[:] = [args[0] if args else kwargs["hidden_states"]]

        def add(_, args, output, inventory=inventory, weights=weights, reads=reads):
            y = output[0] if isinstance(output, tuple) else output
            y = inventory(reads[0], y, weights.expand(len(y), 1, K))
            return (y, *output[1:]) if isinstance(output, tuple) else y

        block.register_forward_pre_hook(note, with_kwargs=True)
        last.register_forward_hook(add)
    return backbone


@pytest.mark.parametrize("kind", ["adapter, behind", "adapter, outputs"])
@pytest.mark.parametrize("family", BACKBONES)
def test_outputs_and_gradients_are_those_of_hooks(family, kind):
    model = skilled(BACKBONES[family](), inventory=kind, targets=["attention", "mlp"]).double()
    plain = hooked(BACKBONES[family]().requires_grad_(False).double(), model)
    trained = [p for p in model.parameters() if p.requires_grad]
    found = model(torch.ones(4, dtype=torch.long), **batch(4))
    expected = plain(**batch(4))
    assert_same(found.logits, expected.logits, trained)
    bare = BACKBONES[family]().double()(**batch(4)).logits
    assert relative_error(bare, expected.logits) > 1e-2


def test_rows_that_follow_one_another_equal_rows_apart():
    slot = RoutingSlot()
    inventory = AdapterInventory(16, 16, K, hidden_features=3)
    fill(inventory)
    layer = SkilledBlock(nn.Linear(16, 16), inventory, slot, 0)
    router = spread(PolytroponRouter(1, 3, 1, K, relaxed=False))
    model = SkilledModel(nn.Sequential(layer), router, slot).eval()
    segments, ids = (3, 1, 4), torch.tensor([2, 0, 1])
    x = torch.randn(2, 4, 16)
    packed = {"input_ids": x[..., 0], "segments": segments}
    with slot.use(model.route(ids, inputs=packed)):
        found = layer(x).flatten(0, 1)
    for task, part, own in zip(
        ids, x.flatten(0, 1).split(segments), found.split(segments), strict=True
    ):
        with slot.use(model.route(task[None])):
            torch.testing.assert_close(layer(part[None])[0], own)
