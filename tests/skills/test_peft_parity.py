"""With copied weights, the same numbers as peft: outputs and gradients."""

import copy

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from mttl.routing import PolytroponRouter, RoutingSlot, private_router, shared_router
from mttl.skills import LoRAInventory, SkilledModel, attach_skills

peft = pytest.importorskip("peft", reason="parity needs the extra `peers`")

TARGETS = ["q", "k", "v", "o", "wi", "wo"]
N_TASKS, N_SKILLS, RANK = 5, 3, 4
TASK_IDS = torch.tensor([0, 3, 1, 3])

# Both sides compute the same products in another order, in float64: rounding only.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=4,
        num_heads=4,
        d_ff=24,
        num_layers=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).double().requires_grad_(False)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(2, 64, (4, 7), generator=generator),
        "labels": torch.randint(2, 64, (4, 5), generator=generator),
    }


def attached(backbone, make_router, n_skills, n_heads=1):
    backbone, slot = copy.deepcopy(backbone), RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, n_skills, rank=RANK, n_heads=n_heads),
        targets=["attention", "mlp"],
        slot=slot,
    )
    model = SkilledModel(backbone, make_router(len(attachment.groups)), slot).double()
    for layer in model.skilled_layers().values():
        nn.init.normal_(layer.inventory.up, std=0.3)
    return model, attachment.groups


@pytest.mark.parametrize("n_splits", [1, 4])
@pytest.mark.parametrize("training", [False, True])
def test_polytropon_equals_poly(backbone, batch, n_splits, training, monkeypatch):
    model, groups = attached(
        backbone, lambda g: PolytroponRouter(g, N_TASKS, n_splits, N_SKILLS), N_SKILLS, n_splits
    )
    nn.init.normal_(model.router.logits)
    config = peft.PolyConfig(
        task_type="SEQ_2_SEQ_LM",
        r=RANK,
        n_tasks=N_TASKS,
        n_skills=N_SKILLS,
        n_splits=n_splits,
        target_modules=TARGETS,
    )
    theirs = peft.get_peft_model(copy.deepcopy(backbone), config).double()
    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in theirs.named_modules()
        if hasattr(module, "poly_lora_A")
    }
    assert list(layers) == list(groups)
    with torch.no_grad():
        for group, (name, layer) in enumerate(model.skilled_layers().items()):
            their = layers[name]
            a = layer.inventory.down.unflatten(1, (n_splits, -1)).transpose(0, 1)
            b = layer.inventory.up.unflatten(1, (n_splits, -1)).permute(1, 0, 3, 2)
            their.poly_lora_A["default"].copy_(a)  # (splits, skills, in / splits, r)
            their.poly_lora_B["default"].copy_(b)  # (splits, skills, r, out / splits)
            logits = model.router.logits[group].flatten(1)
            their.poly_router["default"].module_logits.copy_(logits)
    model.train(training)
    theirs.train(training)
    if training:
        # Both draw relaxed Bernoulli variables; here, with the same noise in every layer.
        noise = torch.randn(len(TASK_IDS), n_splits, N_SKILLS, dtype=torch.float64)
        monkeypatch.setattr(
            "torch.distributions.relaxed_bernoulli.RelaxedBernoulli.rsample",
            lambda self, sample_shape=(): torch.sigmoid(
                self.logits + noise.view(self.logits.shape)
            ),
        )
        monkeypatch.setattr(
            "mttl.routing.polytropon.relaxed_bernoulli",
            lambda logits, temperature: torch.sigmoid(logits + noise),
        )
    found = model(TASK_IDS, **batch)
    expected = theirs(task_ids=TASK_IDS, **batch)
    torch.testing.assert_close(found.logits, expected.logits, **CLOSE)
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    found.loss.backward()
    expected.loss.backward()
    for group, (name, layer) in enumerate(model.skilled_layers().items()):
        their = layers[name]
        a = their.poly_lora_A["default"].grad.transpose(0, 1).flatten(1, 2)
        b = their.poly_lora_B["default"].grad.permute(1, 0, 3, 2).flatten(1, 2)
        torch.testing.assert_close(layer.inventory.down.grad, a, **CLOSE)
        torch.testing.assert_close(layer.inventory.up.grad, b, **CLOSE)
        logits = their.poly_router["default"].module_logits.grad
        torch.testing.assert_close(model.router.logits.grad[group].flatten(1), logits, **CLOSE)


def test_one_shared_skill_equals_lora(backbone, batch):
    model, groups = attached(backbone, lambda g: shared_router(g, N_TASKS), 1)
    config = peft.LoraConfig(r=RANK, lora_alpha=1, lora_dropout=0.0, target_modules=TARGETS)
    theirs = peft.get_peft_model(copy.deepcopy(backbone), config).double()
    layers = {
        name.removeprefix("base_model.model."): module
        for name, module in theirs.named_modules()
        if hasattr(module, "lora_A")
    }
    assert list(layers) == list(groups)
    with torch.no_grad():
        for name, layer in model.skilled_layers().items():
            layers[name].lora_A["default"].weight.copy_(layer.inventory.down[0].t())
            layers[name].lora_B["default"].weight.copy_(layer.inventory.up[0])
    found, expected = model(TASK_IDS, **batch), theirs(**batch)
    torch.testing.assert_close(found.logits, expected.logits, **CLOSE)
    found.loss.backward()
    expected.loss.backward()
    for name, layer in model.skilled_layers().items():
        their = layers[name]
        down, up = their.lora_A["default"].weight.grad, their.lora_B["default"].weight.grad
        torch.testing.assert_close(layer.inventory.down.grad[0], down.t(), **CLOSE)
        torch.testing.assert_close(layer.inventory.up.grad[0], up, **CLOSE)


def test_private_equals_separately_run_loras(backbone, batch):
    model, _ = attached(backbone, lambda g: private_router(g, N_TASKS), N_TASKS)
    together = model(TASK_IDS, **batch).logits
    for task in TASK_IDS.unique():
        alone, _ = attached(backbone, lambda g: shared_router(g, 1), 1)
        with torch.no_grad():
            for name, layer in alone.skilled_layers().items():
                skills = model.skilled_layers()[name].inventory
                layer.inventory.down.copy_(skills.down[task : task + 1])
                layer.inventory.up.copy_(skills.up[task : task + 1])
        rows = task == TASK_IDS
        inputs = {key: value[rows] for key, value in batch.items()}
        expected = alone(torch.zeros(int(rows.sum()), dtype=torch.long), **inputs).logits
        torch.testing.assert_close(together[rows], expected, **CLOSE)
