"""With copied parameters: one shared skill is peft's LoRA, private ones are a LoRA per task.

`PolytroponRouter` and `LoRAInventory` are peft's Poly (MHR where there are several splits).
"""

from functools import partial

import pytest
import torch

from helpers.backbones import batch, tiny_llama, tiny_t5
from helpers.compare import relative_error
from helpers.skills import skilled
from mttl.routing import PrivateRouter, SharedRouter
from mttl.skills import LoRAInventory

peft = pytest.importorskip("peft")

RANK = 4
TASK_IDS = torch.tensor([2, 0, 1, 0, 2])

# Both sides do the same float32 arithmetic in another order, through two blocks (four of an
# encoder and decoder): errors are a few dozen roundings of 6e-8 each.
ROUNDING = 1e-5

TARGETS = ["q", "k", "v", "o", "wi", "wo"]
FAMILIES = {
    "t5": (tiny_t5, TARGETS, "SEQ_2_SEQ_LM"),
    "llama": (tiny_llama, ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"], "CAUSAL_LM"),
}


def ours(backbone, targets, n_tasks, n_skills, router, **settings):
    made = partial(LoRAInventory, rank=RANK)
    sizes = {"n_tasks": n_tasks, "n_skills": n_skills, **settings}
    return skilled(backbone, inventory=made, router=router, targets=targets, **sizes)


def theirs(backbone, targets, kind, skilled, skill):
    """Return peft's model with the factors of one of our skills, and its layers by our paths."""
    # The scaling of LoRA is lora_alpha / r.
    config = peft.LoraConfig(r=RANK, lora_alpha=1, target_modules=targets, task_type=kind)
    model = peft.get_peft_model(backbone, config).eval()
    layers = {path: model.base_model.model.get_submodule(path) for path in skilled}
    with torch.no_grad():
        for path, layer in layers.items():
            inventory = skilled[path].inventory
            layer.lora_A["default"].weight.copy_(inventory.down[skill].t())
            layer.lora_B["default"].weight.copy_(inventory.up[skill])
    return model, layers


def largest_error(skilled, layers, skill):
    """Return the largest relative error of a factor's gradient in any layer."""
    errors = []
    for path, layer in layers.items():
        own = skilled[path].inventory
        errors.append(relative_error(own.down.grad[skill], layer.lora_A["default"].weight.grad.t()))
        errors.append(relative_error(own.up.grad[skill], layer.lora_B["default"].weight.grad))
    return max(errors)


@pytest.mark.parametrize("router", [SharedRouter, PrivateRouter])
@pytest.mark.parametrize("family", FAMILIES)
def test_skills_equal_loras(family, router):
    """One that all tasks share is a LoRA; private ones are LoRAs that run apart."""
    make, targets, kind = FAMILIES[family]
    model, inputs = ours(make(), targets, 3, 1 if router is SharedRouter else 3, router), batch(5)
    skilled = model.skilled_layers()
    found = model(TASK_IDS, **inputs).logits
    found.square().sum().backward()
    for skill in range(model.router.n_skills):
        rows = slice(None) if router is SharedRouter else skill == TASK_IDS
        reference, layers = theirs(make(), targets, kind, skilled, skill)
        own = {name: tensor[rows] for name, tensor in inputs.items()}
        expected = reference(**own).logits
        assert relative_error(found[rows], expected) < ROUNDING
        # The skills do something: without them the output is another.
        with reference.disable_adapter():
            assert relative_error(reference(**own).logits, expected) > 0.1
        expected.square().sum().backward()
        assert largest_error(skilled, layers, skill) < 10 * ROUNDING


N_SKILLS, N_TASKS = 3, 4
POLY_IDS = torch.tensor([2, 0, 3, 0, 2])


def to_splits(factor, n_heads):
    """(K, features, r) -> (H, K, features / H, r): peft stores every block apart."""
    return factor.unflatten(1, (n_heads, -1)).transpose(0, 1)


def poly(model, n_heads):
    config = peft.PolyConfig(
        r=RANK,
        target_modules=TARGETS,
        n_tasks=N_TASKS,
        n_skills=N_SKILLS,
        n_splits=n_heads,
        task_type="SEQ_2_SEQ_LM",
    )
    reference = peft.get_peft_model(tiny_t5(), config)
    layers = {
        path: reference.base_model.model.get_submodule(path) for path in model.skilled_layers()
    }
    with torch.no_grad():
        for path, layer in layers.items():
            own = model.skilled_layers()[path]
            layer.poly_lora_A["default"].copy_(to_splits(own.inventory.down, n_heads))
            layer.poly_lora_B["default"].copy_(to_splits(own.inventory.up, n_heads).transpose(2, 3))
            logits = model.router.logits[own.group].flatten(1)
            layer.poly_router["default"].module_logits.copy_(logits)
    return reference, layers


def share_noise(monkeypatch, layers, model, n_heads):
    """Let both sides see the same uniform draws.

    Ours draws once for all groups, theirs once in each layer: a common seed would not be enough.
    """
    generator = torch.Generator().manual_seed(7)
    shape = (model.router.n_groups, len(POLY_IDS), n_heads, N_SKILLS)
    uniform = 0.05 + 0.9 * torch.rand(shape, generator=generator)
    current = {}

    def remember(group):
        return lambda module, args, kwargs: current.update(group=group)

    for path, layer in layers.items():
        group = model.skilled_layers()[path].group
        layer.poly_router["default"].register_forward_pre_hook(remember(group), with_kwargs=True)

    def draw(*size, **kwargs):
        assert tuple(size[0]) == shape[1:]
        return uniform[current["group"]]

    def draw_like(tensor, **kwargs):
        assert tensor.shape == shape
        return uniform

    monkeypatch.setattr(torch, "rand", draw)
    monkeypatch.setattr(torch, "rand_like", draw_like)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n_heads", [1, 4])
def test_polytropon_equals_poly(monkeypatch, n_heads, training):
    sizes = {"n_tasks": N_TASKS, "n_skills": N_SKILLS, "n_heads": n_heads}
    model = ours(tiny_t5(), TARGETS, router="polytropon", **sizes).train(training)
    reference, layers = poly(model, n_heads)
    reference.train(training)
    inputs = batch(len(POLY_IDS))
    plain = model.eval()(POLY_IDS, **inputs).logits
    model.train(training)
    if training:
        share_noise(monkeypatch, layers, model, n_heads)

    found = model(POLY_IDS, **inputs)
    expected = reference(task_ids=POLY_IDS, **inputs)
    assert relative_error(found.logits, expected.logits) < ROUNDING
    torch.testing.assert_close(found.loss, expected.loss, rtol=ROUNDING, atol=0)
    # Training mode draws: its output is not that of evaluation.
    assert (relative_error(found.logits, plain) > 1e-2) == training

    found.loss.backward()
    expected.loss.backward()
    for path, layer in layers.items():
        own = model.skilled_layers()[path]
        down = to_splits(own.inventory.down.grad, n_heads)
        up = to_splits(own.inventory.up.grad, n_heads).transpose(2, 3)
        logits = model.router.logits.grad[own.group].flatten(1)
        assert relative_error(down, layer.poly_lora_A["default"].grad) < 10 * ROUNDING, path
        assert relative_error(up, layer.poly_lora_B["default"].grad) < 10 * ROUNDING, path
        theirs_logits = layer.poly_router["default"].module_logits.grad
        assert relative_error(logits, theirs_logits) < 10 * ROUNDING, path
    # A task that is not in the batch keeps its row.
    assert not model.router.logits.grad[:, 1].any()
