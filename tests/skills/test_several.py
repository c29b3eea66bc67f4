"""Several kinds of skills side by side on one backbone, and gates."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES, batch, fill, tiny_bart, tiny_llama, tiny_t5
from helpers.compare import relative_error
from helpers.skills import gradients, spread
from mttl.assembly.model import build_model
from mttl.config.load import load_config
from mttl.io.errors import ConfigError
from mttl.merging.fold import average_mixing, fold, strip, unfold
from mttl.routing import PolytroponRouter, RoutingSlot, SharedRouter
from mttl.skills import (
    AdapterInventory,
    HeadMaskInventory,
    LadderInventory,
    LoRAInventory,
    PrefixInventory,
    PromptInventory,
    SkilledModel,
)
from mttl.skills.attach import Level, Placement, attach_levels
from mttl.skills.attention import AttendedInventory
from mttl.skills.gated import GatedInventory

K, TASKS = 3, torch.tensor([2, 0, 1, 0])
ROUNDING = 1e-5  # as in test_skilled_model


def lora(i: int, o: int) -> LoRAInventory:
    return LoRAInventory(i, o, K, rank=2)


def adapter(i: int, o: int) -> AdapterInventory:
    return AdapterInventory(i, o, K, hidden_features=3, parallel=False)


SLOW = ("llama", "gpt2")
families = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BACKBONES]
)
LORA = Placement(lora, ["attention", "mlp"])
ADAPTER = Placement(adapter, ["attention", "mlp"], "block")


def several(backbone: nn.Module, *placements: Placement) -> SkilledModel:
    slot = RoutingSlot()
    backbone.requires_grad_(False)
    (made,) = attach_levels(backbone, [Level(placements, slot, "layer")])
    router = spread(PolytroponRouter(len(made.groups), 3, 1, K, relaxed=False))
    model = SkilledModel(backbone, router, slot).eval()
    for layer in model.skilled_layers().values():
        fill(layer.inventory, layer.inventory.in_features + layer.inventory.out_features)
    return model


def run(model: SkilledModel, task_ids: torch.Tensor = TASKS) -> Any:
    return model(task_ids, **batch(len(task_ids)))


@families
def test_each_kind_does_what_it_does_alone(family: str) -> None:
    """Where the other one is fresh; blocks and the layers inside share the rows of a group."""
    together = several(BACKBONES[family](), ADAPTER, LORA)
    for kept, kind in ((LORA, LoRAInventory), (ADAPTER, AdapterInventory)):
        both, alone = copy.deepcopy(together), several(BACKBONES[family](), kept)
        for layer in both.skilled_layers().values():
            if not isinstance(layer.inventory, kind):
                layer.inventory.reset_parameters()
        if family != "bart":  # whose inline blocks make other groups
            assert both.router.n_groups == alone.router.n_groups
        with torch.no_grad():
            theirs = {key: layer.group for key, layer in _plain(both).items()}
            for name, layer in _plain(alone).items():
                alone.router.logits[layer.group] = both.router.logits[theirs[name]]
        assert relative_error(run(both).logits, run(alone).logits) < ROUNDING
        assert relative_error(run(together).logits, run(alone).logits) > 1e-3


def _plain(model: SkilledModel) -> dict[tuple[str, type], Any]:
    layers = model.skilled_layers().items()
    # The first layer of an inline block is inside its block.
    names = {path: path.replace(".base", "").replace("fc1.fc", "fc") for path, _ in layers}
    return {(names[path], type(layer)): layer for path, layer in layers}


def test_ranks_and_alphas_by_layer_are_pefts() -> None:
    """`rank_pattern` and `alpha_pattern` are a list of kinds with targets of their own."""
    peft = pytest.importorskip("peft")
    sizes = {"q": (2, 3.0), "wo": (3, 5.0)}
    parts = [
        Placement(lambda i, o, r=r, a=a: LoRAInventory(i, o, 1, rank=r, alpha=a), [name])
        for name, (r, a) in sizes.items()
    ]
    slot, backbone = RoutingSlot(), tiny_t5().requires_grad_(False)
    attach_levels(backbone, [Level(parts, slot, "model")])
    model = SkilledModel(backbone, SharedRouter(1, 3), slot).eval()
    patterns = {"rank_pattern": {"wo": 3}, "alpha_pattern": {"wo": 5.0}}
    config = peft.LoraConfig(r=2, lora_alpha=3.0, target_modules=["q", "wo"], **patterns)
    theirs = peft.get_peft_model(tiny_t5(), config).eval()
    for path, layer in model.skilled_layers().items():
        fill(own := layer.inventory)
        other = theirs.base_model.model.get_submodule(path)
        other.lora_A["default"].weight.data = own.down[0].t().detach()
        other.lora_B["default"].weight.data = own.up[0].detach()
    assert relative_error(run(model).logits, theirs(**batch(4)).logits) < ROUNDING


@families
def test_a_mixed_batch_equals_one_by_one_also_in_generation(family: str) -> None:
    model, inputs = several(BACKBONES[family](), LORA, ADAPTER), batch(4)
    together = model(TASKS, **inputs).logits
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 5, "min_new_tokens": 5}
    answers = model.generate(TASKS, input_ids=inputs["input_ids"], **settings)
    for row in range(4):
        one = slice(row, row + 1)
        rows = {name: value[one] for name, value in inputs.items()}
        assert relative_error(together[one], model(TASKS[one], **rows).logits) < ROUNDING
        alone = model.generate(TASKS[one], input_ids=rows["input_ids"], **settings)
        assert torch.equal(answers[one], alone)


ATTENDED = Placement(lambda i, o: AttendedInventory(lora(i, o)), ["attention"])


@pytest.mark.parametrize(
    ("kinds", "n_trained"),
    [
        ((LORA, ADAPTER), 1 + 2 * 32 + 4 * 10),  # the router, layers and blocks
        ((ATTENDED,), 4 * 24),  # a query, its bias, a key and a value
    ],
)
def test_gradient_checkpointing_changes_no_gradient(kinds, n_trained) -> None:
    found = []
    for checkpointing in (False, True):
        model = several(tiny_t5(), *kinds).double().train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        routing = model.route(TASKS)
        with model.slot.use(routing):
            loss = model.backbone(**batch(4)).loss
        torch.stack([loss, *routing.losses.values()]).sum().backward()
        found.append(gradients(model))
    assert len(found[0]) == n_trained
    for name, gradient in found[0].items():
        assert relative_error(found[1][name], gradient) < 1e-9, name


@families
def test_skills_come_off_and_are_put_back(family: str) -> None:
    model = several(BACKBONES[family](), LORA, ADAPTER)
    expected = run(model).logits
    bare = strip(model)
    plain = BACKBONES[family]().requires_grad_(False)
    assert torch.equal(bare.backbone(**batch(4)).logits, plain(**batch(4)).logits)
    unfold(bare)
    assert torch.equal(run(model).logits, expected)
    with pytest.raises(ValueError, match="cannot be merged: they act on "):
        fold(model, average_mixing(model.router))
    assert torch.equal(run(model).logits, expected)


def test_one_place_takes_one_kind() -> None:
    head = Placement(lambda i, o, a: HeadMaskInventory(i, o, K, a), ["attention"], "head")
    prompt = Placement(lambda i, o: PromptInventory(i, o, K, length=2), ["input"], "embedding")
    prefix = Placement(
        lambda i, o, a, h: PrefixInventory(i, o, K, a, h), ["attention"], "attention"
    )
    ladder = Placement(
        lambda i, o, n: LadderInventory(i, o, K, n, side_features=2), ["stack"], "stack"
    )
    own, one = "give every kind separate targets", "keep one of these kinds"
    for first, second, noun, advice in (
        (LORA, LORA, "linear layer", own),
        (ADAPTER, ADAPTER, "block", own),
        (LORA, head, "output projection", own),
        (head, LORA, "linear layer", own),
        (prefix, prefix, "attention module", own),
        (prompt, prompt, "input embedding", one),
        (ladder, ladder, "stack", one),
    ):
        message = f"'.*' would get two kinds of skills, but a {noun} can have only one: {advice}"
        with pytest.raises(ValueError, match=message):
            several(tiny_llama(), first, second)
    backbone = tiny_bart()
    with pytest.raises(ValueError, match="two kinds"):
        several(backbone, ADAPTER, LORA, LORA)
    assert not any(hasattr(module, "inventory") for module in backbone.modules())


# The section.

TINY = "crossfit.yaml+backbone/tiny_t5.yaml"
BOTH = f"{TINY}+skills/lora_parallel.yaml"


def test_the_section_builds_both_kinds() -> None:
    config = load_config(BOTH, ["skills.n_skills=3"])
    model = build_model(config, ["a", "b"]).model
    kinds = [type(layer.inventory) for layer in model.skilled_layers().values()]
    assert (kinds.count(LoRAInventory), kinds.count(AdapterInventory)) == (24, 4)
    assert {layer.inventory.n_skills for layer in model.skilled_layers().values()} == {3}
    gated = build_model(load_config(f"{TINY}+skills/unipelt.yaml"), ["a", "b"]).model
    inventories: Any = [layer.inventory for layer in gated.skilled_layers().values()]
    assert all(isinstance(inventory, GatedInventory) for inventory in inventories)
    kinds = [type(inventory.skills) for inventory in inventories]
    assert [kinds.count(one) for one in (PrefixInventory, LoRAInventory, AdapterInventory)] == [
        *(6, 24, 4)
    ]


def test_groups_of_layers_have_kinds_of_their_own() -> None:
    """S4's groups, on every layer of the backbone for which its file is written."""
    built = build_model(load_config("crossfit.yaml+skills/s4.yaml"), ("a", "b"))
    found: dict[str, set[str]] = {}
    for path, layer in built.model.skilled_layers().items():
        stack, _, number = path.replace(".base", "").split(".")[:3]
        name = type(layer.inventory).__name__.removesuffix("Inventory")
        found.setdefault(f"{stack}.{number}", set()).add(name)
    assert found == {
        "encoder.0": {"Adapter", "LoRA"},
        "encoder.1": {"Adapter", "Prefix"},
        "encoder.2": {"Adapter", "Prefix"},
        "decoder.0": {"Adapter", "Prefix", "BitFit"},
        "decoder.1": {"Prefix", "BitFit", "LoRA"},
    }


FUSED = "aggregation.kind=fusion aggregation.source=runs/x router.kind=average"
STACKED = r"skills.stages \(\[4, 4\]\)"


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ("kinds", "[{kind: lora}]", "skills.kinds: .*at least 2"),
        ("kinds", "[{kind: lora}, {kind: lorra}]", "'lorra' must be one of lora, .*mean 'lora'"),
        ("kinds", "[{kind: lora}, {kind: ia3, n_skills: 4}]", "1' has no setting 'n_skills'"),
        ("kinds", "[{kind: lora}, {kind: ia3, rank: 4}]", "has no setting 'rank'"),
        ("kinds", "[{kind: lora}, {kind: sparse, support: x}]", "kinds.1.support must be random"),
        ("ladder", "backbone.compile=true", r"backbone.compile .* work with skills.kind 'ladder'"),
        ("compacter", "trainer.strategy=fsdp2", r"\(fsdp2\) does not work with skills.shared"),
        ("adapter_stacked", "router.kind=hyperformer", f"does not work with {STACKED}"),
        ("adapter_stacked", FUSED, "skills.stages must be null with aggregation.kind 'fusion'"),
    ],
)
def test_configurations_that_kinds_refuse(names: str, settings: str, message: str) -> None:
    given = settings.split()
    if names == "kinds":
        given = ["skills.kind=several", f"skills.kinds={settings}"]
    with pytest.raises(ConfigError, match=message):
        load_config(TINY if names == "kinds" else f"crossfit.yaml+skills/{names}.yaml", given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["skills.kinds=[{kind: lora}, {kind: ia3}]"], "section skills: '.*' would get two kinds"),
        (["skills.n_heads=4"], r"section skills: '.*': n_heads \(4\) must be 1 for AdapterInv"),
    ],
)
def test_what_cannot_be_built(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(load_config(BOTH, settings), ["a", "b"])
