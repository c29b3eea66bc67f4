"""One shared skill is peft's LoRA; one private skill per task is a LoRA per task."""

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
