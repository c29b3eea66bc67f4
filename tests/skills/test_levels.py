"""Skills on top of frozen skills that another run trained."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.adapterhub import adapted, adapterhub
from helpers.backbones import BACKBONES, batch, fill, tiny_bart, tiny_llama, tiny_t5
from helpers.compare import assert_same, relative_error
from helpers.skills import INVENTORIES, OTHERS, PLACED, gradients, kind_class
from mttl.checkpoints.model_tensors import backbone_parameters
from mttl.merging.fold import fold
from mttl.models.prefixed_attention import read_prefixes
from mttl.routing import CoefficientRouter, RoutingSlot
from mttl.routing.context import ConstantSlot
from mttl.routing.task.fixed import GivenRows
from mttl.skills import AdapterInventory, PrefixInventory, SkilledModel
from mttl.skills.attach import Level, Placement, attach_levels
from mttl.skills.skilled_layer import layers_of

K, TASKS = 2, torch.tensor([2, 0, 1, 0])
SHARES = torch.tensor([0.25, 0.75])  # of the skills of the other run
ROUNDING = 1e-9  # double precision, sums in another order
KINDS = INVENTORIES | OTHERS | PLACED
WORDS = {"embedding": "input", "embedded": "input", "norm": "norms", "stack": "stack"}


def placed(kind: str, targets: tuple[str, ...] = ("attention",)) -> Placement:
    point = kind_class(kind).attachment_point
    targets = (WORDS[point],) if point in WORDS else targets
    make = KINDS[kind]
    return Placement(lambda i, o, *more: make(i, o, K, *more), targets, point)


def stacked(backbone: nn.Module, *placements: Placement) -> SkilledModel:
    """Return a model whose last skills are its own, of three tasks, on top of the others."""
    backbone.double().requires_grad_(False)
    slots = [ConstantSlot(torch.zeros(1, 1, 1, K)) for _ in placements[1:]]
    own, levels = RoutingSlot(), []
    for placement, slot in zip(placements, [*slots, own], strict=True):
        levels.append(Level([placement], slot, "layer"))
    *below, made = attach_levels(backbone, levels)
    if any(placement.attachment_point == "attention" for placement in placements):
        read_prefixes(backbone)  # type: ignore[arg-type]
    for slot, attached in zip(slots, below, strict=True):
        slot.mixing = SHARES.expand(len(attached.groups), 1, 1, K)
        for seed, layer in enumerate(layers_of(backbone, slot).values()):
            fill(layer.inventory.double().requires_grad_(False), seed)
    router = CoefficientRouter(len(made.groups), 3, 1, K).double()
    model = SkilledModel(backbone, router, own)
    fill(router)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory.double(), 100 + seed)
    return model.double().eval()


def alone(backbone: nn.Module, placement: Placement) -> SkilledModel:
    """Return a model with the skills of the other run only, with the routing of its task."""
    model = stacked(backbone, placement)
    for seed, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, seed)
    rows = SHARES.double().expand(model.router.n_groups, 3, 1, K)
    return model.with_router(GivenRows(rows))


def run(model: SkilledModel) -> Tensor:
    return model(TASKS, **batch(4)).logits


STACKED = ("adapter", "adapter, behind", "compacter", "prefix", "prefix, joint", "lora, gated")
STACKED += ("lora-factors", "lora-outputs", "ia3", "sparse-deltas", "sparse-outputs", "norm")
STACKED += ("head_mask", "bitfit", "intrinsic", "diff_pruning", "krona-deltas", "invertible")


@pytest.mark.parametrize("kind", STACKED)
def test_fresh_skills_leave_the_other_runs_as_they_are(kind: str) -> None:
    """They learn; the others get no gradient, are not sampled, and are none of the model's own."""
    expected = run(alone(tiny_t5(), placed(kind)))
    model = stacked(tiny_t5(), placed(kind), placed(kind)).train()
    changed = run(model)
    changed.square().sum().backward()
    own = [layer.inventory for layer in model.skilled_layers().values()]
    held = {id(value) for part in own for value in part.parameters()}
    held |= {id(value) for value in model.router.parameters()}
    learnt = {id(value) for value in model.parameters() if value.grad is not None}
    assert learnt == held
    plain = stacked(tiny_t5(), placed(kind))
    assert model.skilled_layers().keys() == plain.skilled_layers().keys()
    if kind == "prefix, joint":  # is never without effect
        return
    for part in own:
        part.reset_parameters()
    assert relative_error(run(model), expected) < ROUNDING
    assert relative_error(changed, expected) > 1e-3


@pytest.mark.parametrize(
    ("other", "own", "family"),
    [
        ("lora-factors", "lora-factors", "t5"),
        ("lora-deltas", "sparse-deltas", "llama"),
        ("sparse-deltas", "sparse-deltas", "t5"),
        ("supermask", "lora-factors", "bart"),
        ("head_mask", "lora-factors", "t5"),
        ("ia3", "head_mask", "t5"),
        ("lora-outputs", "adapter", "gpt2"),
        ("lora-factors", "norm", "t5"),
        ("norm", "norm", "bart"),
        ("dense-deltas", "invertible", "llama"),
    ],
)
def test_weights_are_those_of_the_other_run_folded_in(other: str, own: str, family: str) -> None:
    found = stacked(BACKBONES[family](), placed(other), placed(own))
    before = alone(BACKBONES[family](), placed(other))
    folded = fold(before, before.router.matrix()[:, 0]).backbone
    expected = stacked(folded, placed(own))
    logits = [run(model) for model in (found, expected)]
    for one in logits:
        one.square().sum().backward()
    assert relative_error(*logits) < ROUNDING
    ours, theirs = (
        {name.replace(".base", ""): value for name, value in gradients(model).items()}
        for model in (found, expected)
    )
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert relative_error(ours[name], gradient) < ROUNDING, name


def test_adapters_are_a_stack_of_adapterhubs() -> None:
    """Their `Stack` gives the task's adapter what the language's made of the block's output."""
    hub, size = adapterhub(), 8
    config = hub.configuration.DoubleSeqBnConfig(original_ln_after=False)
    adapter = hub.modeling.Adapter("skill", size, 5, config)
    block: Any = nn.Module()
    block.q, block.o = nn.Linear(size, size), nn.Linear(size, size)
    make = partial(AdapterInventory, n_skills=1, hidden_features=5, parallel=False)
    placement = Placement(partial(make, activation="silu"), ["layer"], "block")
    backbone = nn.ModuleDict({"layer": block})
    block.forward = lambda x: block.o(block.q(x))
    slots = ConstantSlot(torch.ones(1, 1, 1, 1)), RoutingSlot()
    attach_levels(backbone, [Level([placement], slot) for slot in slots])
    model = SkilledModel(backbone, GivenRows(torch.ones(1, 1, 1, 1)), slots[1]).double()
    x = torch.randn(4, 3, size, dtype=torch.float64, requires_grad=True)
    with model.slot.use(model.route(torch.zeros(4, dtype=torch.long))):
        for seed, slot in enumerate(slots):
            fill(layers_of(backbone, slot)["layer"].inventory, seed)
        found = backbone["layer"](x)
    expected = block.o(block.q(x))
    leaves: list[Tensor] = [x]
    for slot in slots:
        (layer,) = layers_of(backbone, slot).values()
        blocks: Any = layer.inventory.blocks
        parts = {
            "adapter_down.0.weight": blocks.up[0],
            "adapter_down.0.bias": blocks.up_bias[0],
            "adapter_up.weight": blocks.down[0],
            "adapter_up.bias": blocks.down_bias[0],
        }
        expected = adapted(adapter, parts, x, expected, None)
        leaves += layer.inventory.parameters()
    assert_same(found, expected, leaves, rtol=1e-12, atol=1e-12)  # as in test_adapter


def test_joint_prefixes_are_one_longer_prefix() -> None:
    model = stacked(tiny_llama(), placed("prefix, joint"), placed("prefix, joint"))
    (slot,) = {one for one in model.modules() if isinstance(one, ConstantSlot)}
    both = layers_of(model.backbone, slot), model.skilled_layers()
    joined = stacked(
        tiny_llama(),
        Placement(
            lambda i, o, *more: PrefixInventory(i, o, K, *more, length=4, gated=False),
            ["attention"],
            "attention",
        ),
    )
    joined.router = model.router
    with torch.no_grad():
        for path, layer in joined.skilled_layers().items():
            below, above = (level[path].inventory for level in both)
            weights = model.router.mix(torch.tensor([1]))[layer.group]
            for name in ("keys", "values"):
                mixed = torch.tensordot(SHARES.double(), getattr(below, name), 1)
                # Coefficients of a task need not sum to 1.
                given = mixed / weights.sum()
                value = torch.cat([given.expand(K, -1, -1), getattr(above, name)], -1)
                getattr(layer.inventory, name).copy_(value)
    ids, inputs = torch.ones(4, dtype=torch.long), batch(4)
    found, expected = (m(ids, **inputs).logits for m in (model, joined))
    assert relative_error(found, expected) < ROUNDING


def test_the_inverse_precedes_the_output_layer() -> None:
    """With tied weights, in generation too; the order is that of the levels."""
    kinds = placed("invertible"), placed("invertible")
    model = stacked(tiny_llama(tie_word_embeddings=True), *kinds)
    network: Any = model.backbone
    own, ids = network.get_input_embeddings(), batch(4)["input_ids"]
    with model.slot.use(model.route(TASKS)):
        states = network.model(ids).last_hidden_state
        expected = own.base.inverse(own.inverse(states)) @ own.weight.t()
        assert relative_error(own.inverse(own(ids)), own.base(ids)) < ROUNDING
    assert relative_error(model(TASKS, input_ids=ids).logits, expected) < ROUNDING
    copied = copy.deepcopy(model)
    for layer in copied.skilled_layers().values():
        layer.inventory.reset_parameters()
    assert relative_error(copied(TASKS, input_ids=ids).logits, expected) > 1e-3
    apart: Any = stacked(tiny_llama(), placed("invertible")).backbone
    assert not apart.lm_head._forward_pre_hooks  # weights of its own


def test_inline_blocks_become_modules_once() -> None:
    """Those of BART; layers and parameters keep their names."""
    levels = placed("adapter, behind", ("mlp",)), placed("lora-factors", ("mlp",))
    bare = backbone_parameters(tiny_bart())
    for kinds in (levels, levels[::-1], levels[:1] * 2):
        model = stacked(tiny_bart(), *kinds)
        (slot,) = {one for one in model.modules() if isinstance(one, ConstantSlot)}
        for own, kind in zip((slot, model.slot), kinds, strict=True):
            names = stacked(tiny_bart(), kind).skilled_layers().keys()
            assert layers_of(model.backbone, own).keys() == names
        assert relative_error(run(model), run(stacked(tiny_bart(), kinds[1]))) > 1e-3
        assert backbone_parameters(model.backbone).keys() == bare.keys()


def test_skills_that_read_a_weight_are_refused() -> None:
    with pytest.raises(ValueError, match="reads the weight of its layer, which has skills of"):
        stacked(tiny_t5(), placed("lora-factors"), placed("supermask"))
