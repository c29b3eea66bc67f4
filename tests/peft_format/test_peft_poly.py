"""peft loads an exported inventory as Poly and answers as it does; its checkpoints come back."""

import pytest
import torch

from helpers.backbones import BACKBONES, batch, fill, tiny_gpt2, tiny_t5
from helpers.compare import relative_error
from helpers.skills import ROUTERS, skilled
from mttl.io.errors import CheckpointError
from mttl.peft_format.peft_folder import PeftFolder, read_peft, write_peft
from mttl.peft_format.poly import poly_checkpoint, poly_logits, read_poly
from mttl.routing import PolytroponRouter, RoutingSlot
from mttl.skills import LoRAInventory, SkilledModel, attach_skills

peft = pytest.importorskip("peft")

ROUNDING = 1e-5  # the same float32 arithmetic in another order, through two to four blocks
TASK_IDS = torch.tensor([2, 0, 1, 2])
TASK_TYPES = {"t5": "SEQ_2_SEQ_LM", "bart": "SEQ_2_SEQ_LM", "llama": "CAUSAL_LM"}
TARGETS = {"t5": ["q", "wo"], "bart": ["q_proj", "fc2"], "llama": ["q_proj", "down_proj"]}


def export(model, folder, family="t5"):
    write_peft(folder, *poly_checkpoint(model, base=None))
    return peft.PeftModel.from_pretrained(BACKBONES[family](), folder).eval()


@pytest.mark.parametrize("n_heads", [1, 2])
@pytest.mark.parametrize("family", TASK_TYPES)
def test_peft_answers_as_the_inventory(family, n_heads, tmp_path):
    # Layers of a block share a row here; every layer of peft has a copy of it.
    model = skilled(BACKBONES[family](), n_heads=n_heads, granularity="block")
    theirs = export(model, tmp_path / "poly", family)
    found = theirs(task_ids=TASK_IDS, **batch(4)).logits
    expected = model(TASK_IDS, **batch(4)).logits
    assert relative_error(found, expected) < ROUNDING
    other = model(TASK_IDS.flip(0), **batch(4)).logits
    assert relative_error(other, expected) > 1e-2  # tasks and rows matter


def test_peft_answers_as_a_hard_router_does(tmp_path):
    model = skilled(tiny_t5(), n_heads=2, router="polytropon-hard")
    assert not model.router.matrix().any(-1).all()  # some task uses no skill somewhere
    found = export(model, tmp_path / "poly")(task_ids=TASK_IDS, **batch(4)).logits
    assert relative_error(found, model(TASK_IDS, **batch(4)).logits) < ROUNDING


# Weights of these may be negative.
@pytest.mark.parametrize("kind", [k for k in ROUTERS if k not in ("hyperformer", "coefficients")])
def test_routers_of_other_kinds_become_logits(kind):
    router = ROUTERS[kind](2, 3, 2, 4)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.normal_()
    active = poly_logits(router).sigmoid()
    # The normalisation is peft's; zeros come out as 1e-35.
    torch.testing.assert_close(
        active / (active.sum(-1, keepdim=True) + 1e-12), router.matrix().detach()
    )


@pytest.mark.parametrize("n_splits", [1, 2])
@pytest.mark.parametrize("family", TASK_TYPES)
def test_a_checkpoint_of_peft_becomes_an_inventory(family, n_splits, tmp_path):
    config = peft.PolyConfig(
        **{"r": 3, "n_tasks": 3, "n_skills": 4, "n_splits": n_splits},
        target_modules=TARGETS[family],
        task_type=TASK_TYPES[family],
    )
    theirs = peft.get_peft_model(BACKBONES[family](), config)
    for seed, layer in enumerate(theirs.modules()):
        if hasattr(layer, "poly_lora_A"):
            for part in (layer.poly_lora_A, layer.poly_lora_B, layer.poly_router):
                fill(part, seed)
    theirs.save_pretrained(tmp_path)
    expected = theirs.eval()(task_ids=TASK_IDS, **batch(4)).logits

    layers = read_poly(read_peft(tmp_path))
    backbone, slot = BACKBONES[family](), RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, 4, rank=3, n_heads=n_splits),
        targets=list(layers),
        slot=slot,
    )
    router = PolytroponRouter(len(attachment.groups), 3, n_splits, 4)
    model = SkilledModel(backbone, router, slot).eval()
    assert set(model.skilled_layers()) == set(layers)
    with torch.no_grad():
        for path, layer in model.skilled_layers().items():
            layer.inventory.down.copy_(layers[path].down)
            layer.inventory.up.copy_(layers[path].up)
            router.logits[layer.group] = layers[path].logits
    assert relative_error(model(TASK_IDS, **batch(4)).logits, expected) < ROUNDING


def test_what_poly_cannot_hold_is_refused():
    for model, message in (
        (skilled(tiny_t5(), inventory="ia3"), "has IA3Inventory; Poly needs LoRA"),
        (skilled(tiny_t5(), inventory="lora-deltas"), "skills.mix is 'deltas', but Poly averages"),
        (skilled(tiny_gpt2()), "is Conv1D; Poly needs nn.Linear"),
        (skilled(tiny_t5(), router="hyperformer"), "HyperFormerRouter are not non-negative with"),
    ):
        with pytest.raises(CheckpointError, match=message):
            poly_checkpoint(model, base=None)


def test_a_checkpoint_that_does_not_fit_itself_is_refused(tmp_path):
    export(skilled(tiny_t5()), tmp_path)
    good = read_peft(tmp_path)
    name = next(name for name in good.tensors if name.endswith("poly_lora_B"))
    for config, tensors, message in (
        ({"peft_type": "LORA"}, {}, "is a LORA adapter, not POLY"),
        ({"n_tasks": None}, {}, "do not fit its adapter_config.json: .* for None tasks"),
        ({"r": 5}, {}, "do not fit its adapter_config.json: "),
        ({}, {name: torch.zeros(3)}, "do not fit its adapter_config.json: "),
        ({}, {"extra.weight": torch.zeros(1)}, "these tensors cannot be used: extra.weight"),
    ):
        folder = PeftFolder(good.path, good.config | config, good.tensors | tensors)
        with pytest.raises(CheckpointError, match=message):
            read_poly(folder)
    fewer = {key: value for key, value in good.tensors.items() if key != name}
    with pytest.raises(CheckpointError, match=f"these tensors are missing: {name}"):
        read_poly(PeftFolder(good.path, good.config, fewer))
