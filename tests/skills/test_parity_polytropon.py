"""`PolytroponRouter` and `LoRAInventory` are peft's Poly (MHR where there are several splits)."""

from functools import partial

import pytest
import torch

from helpers.backbones import batch, tiny_t5
from helpers.compare import relative_error
from helpers.skills import skilled
from mttl.skills import LoRAInventory

peft = pytest.importorskip("peft")

TARGETS = ["q", "k", "v", "o", "wi", "wo"]
RANK, N_SKILLS, N_TASKS = 4, 3, 4
TASK_IDS = torch.tensor([2, 0, 3, 0, 2])

# Both sides do the same float32 arithmetic in another order, through four blocks: errors are a few
# dozen roundings of 6e-8 each. Gradients of the routing pass through a division as well.
ROUNDING = 1e-5


def ours(n_heads):
    made = partial(LoRAInventory, rank=RANK)
    sizes = {"n_tasks": N_TASKS, "n_skills": N_SKILLS, "n_heads": n_heads}
    return skilled(tiny_t5(), inventory=made, targets=TARGETS, **sizes)


def to_splits(factor, n_heads):
    """(K, features, r) -> (H, K, features / H, r): peft stores every block apart."""
    return factor.unflatten(1, (n_heads, -1)).transpose(0, 1)


def theirs(model, n_heads):
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
    shape = (model.router.n_groups, len(TASK_IDS), n_heads, N_SKILLS)
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
def test_outputs_and_gradients(monkeypatch, n_heads, training):
    model = ours(n_heads).train(training)
    reference, layers = theirs(model, n_heads)
    reference.train(training)
    inputs = batch(len(TASK_IDS))
    plain = model.eval()(TASK_IDS, **inputs).logits
    model.train(training)
    if training:
        share_noise(monkeypatch, layers, model, n_heads)

    found = model(TASK_IDS, **inputs)
    expected = reference(task_ids=TASK_IDS, **inputs)
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
