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

FAMILIES = {
    "t5": (tiny_t5, ["q", "k", "v", "o", "wi", "wo"], "SEQ_2_SEQ_LM"),
    "llama": (tiny_llama, ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"], "CAUSAL_LM"),
}


def ours(backbone, targets, make_router, n_tasks):
    n_skills = make_router(1, n_tasks).n_skills
    sizes = {"n_tasks": n_tasks, "n_skills": n_skills}
    made = partial(LoRAInventory, rank=RANK)
    return skilled(backbone, inventory=made, router=make_router, targets=targets, **sizes)


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


def largest_errors(skilled, layers, skill):
    """Return the largest relative errors of the two factors' gradients over all layers."""
    down = [
        relative_error(
            skilled[path].inventory.down.grad[skill], layer.lora_A["default"].weight.grad.t()
        )
        for path, layer in layers.items()
    ]
    up = [
        relative_error(skilled[path].inventory.up.grad[skill], layer.lora_B["default"].weight.grad)
        for path, layer in layers.items()
    ]
    return max(down), max(up)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_skill_equals_lora(family):
    make, targets, kind = FAMILIES[family]
    model = ours(make(), targets, SharedRouter, 3)
    skilled = model.skilled_layers()
    reference, layers = theirs(make(), targets, kind, skilled, 0)
    inputs = batch(5)
    found, expected = model(TASK_IDS, **inputs), reference(**inputs)
    assert relative_error(found.logits, expected.logits) < ROUNDING
    torch.testing.assert_close(found.loss, expected.loss, rtol=ROUNDING, atol=0)
    # The skills do something: without them the output is another.
    with reference.disable_adapter():
        assert relative_error(reference(**inputs).logits, expected.logits) > 0.1
    found.loss.backward()
    expected.loss.backward()
    assert max(largest_errors(skilled, layers, 0)) < 10 * ROUNDING


@pytest.mark.parametrize("family", FAMILIES)
def test_private_skills_equal_loras_that_run_apart(family):
    make, targets, kind = FAMILIES[family]
    model = ours(make(), targets, PrivateRouter, 3)
    skilled = model.skilled_layers()
    inputs = batch(5)
    found = model(TASK_IDS, **inputs)
    found.logits.square().sum().backward()
    for task in range(3):
        rows = (task == TASK_IDS).nonzero().flatten()
        reference, layers = theirs(make(), targets, kind, skilled, task)
        expected = reference(**{name: tensor[rows] for name, tensor in inputs.items()})
        assert relative_error(found.logits[rows], expected.logits) < ROUNDING
        expected.logits.square().sum().backward()
        assert max(largest_errors(skilled, layers, task)) < 10 * ROUNDING


TARGETS = ["q", "k", "v", "o", "wi", "wo"]
N_SKILLS, N_TASKS = 3, 4
POLY_IDS = torch.tensor([2, 0, 3, 0, 2])


def ours_mixed(n_heads):
    made = partial(LoRAInventory, rank=RANK)
    sizes = {"n_tasks": N_TASKS, "n_skills": N_SKILLS, "n_heads": n_heads}
    return skilled(tiny_t5(), inventory=made, targets=TARGETS, **sizes)


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
    model = ours_mixed(n_heads).train(training)
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
