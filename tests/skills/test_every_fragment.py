"""Every shipped kind of skill on a whole model: mixed batches, beams, checkpointing, bfloat16."""

from typing import Any

import pytest
import torch

from helpers.backbones import batch
from helpers.fragments import fragments, frozen_config, trained
from helpers.skills import gradients, spread
from mttl.skills import SkilledModel

TASK_IDS = torch.tensor([0, 1, 3, 0])
# Rounding in double precision: a batch and its rows take other kernels, and sums another order.
ROUNDING = 1e-12


@pytest.fixture(scope="module", params=fragments("skills"))
def model(request: pytest.FixtureRequest) -> SkilledModel:
    """A model with skills of a kind that are far from their initialisation."""
    built, _ = trained(frozen_config(request.param))
    spread(built.model.router)
    return built.model.double().eval()


@torch.no_grad()
def test_a_mixed_batch_equals_one_by_one(model: SkilledModel) -> None:
    inputs = batch(len(TASK_IDS))
    together = model(TASK_IDS, **inputs).logits
    for row in range(len(TASK_IDS)):
        one = slice(row, row + 1)
        alone = model(TASK_IDS[one], **{name: value[one] for name, value in inputs.items()}).logits
        assert (together[one] - alone).abs().max() < ROUNDING
    others = model(TASK_IDS.roll(1), **inputs).logits
    assert (together - others).abs().max() > 1e-4


def test_beams_equal_one_by_one_and_without_a_cache(model: SkilledModel) -> None:
    ids = batch(len(TASK_IDS))["input_ids"]
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 5, "min_new_tokens": 5}
    together = model.generate(TASK_IDS, input_ids=ids, **settings)
    for row in range(len(TASK_IDS)):
        one = slice(row, row + 1)
        assert torch.equal(
            together[one], model.generate(TASK_IDS[one], input_ids=ids[one], **settings)
        )
    assert torch.equal(
        together, model.generate(TASK_IDS, input_ids=ids, use_cache=False, **settings)
    )


def test_checkpointing_changes_no_gradient(model: SkilledModel) -> None:
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.enable_gradient_checkpointing()
        model.zero_grad()
        torch.manual_seed(3)  # routers and masks draw
        model.train()(TASK_IDS, **batch(len(TASK_IDS))).loss.backward()
        found.append(gradients(model))
    model.backbone.gradient_checkpointing_disable()
    model.zero_grad()
    model.eval()
    plain, saving = found
    assert plain.keys() == saving.keys()
    assert any(".inventory." in name for name in plain)
    for name, gradient in plain.items():
        # Absolute: attention does not see biases of its keys, whose gradient is rounding alone.
        assert (gradient - saving[name]).abs().max() < ROUNDING, name


def test_half_precision(model: SkilledModel) -> None:
    inputs = batch(len(TASK_IDS))
    model.float()
    with torch.no_grad():
        expected = model(TASK_IDS, **inputs).logits
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(TASK_IDS, **inputs)
    mixed.loss.backward()
    assert all(value.dtype == torch.float32 for value in gradients(model).values())
    model.zero_grad()
    model.double()
    # A mantissa of 8 bits, and errors of a few layers.
    assert (mixed.logits - expected).norm() < 0.1 * expected.norm()
