"""X-LoRA equals PEFT's, also in generation with a cache, which PEFT's does without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from helpers.backbones import batch, fill, tiny_llama, tiny_t5
from helpers.peft_adapters import peft, save_lora
from mttl.routing import RoutingSlot, XLoRARouter
from mttl.skills import LoRAInventory, SkilledModel, attach_skills
from mttl.training.packing_check import check_packing

K, RANK, ALPHA = 3, 2, 3
LAYERS = ["q_proj", "v_proj", "down_proj"]
TARGETS = [f"*.{name}" for name in LAYERS]
TASKS = torch.tensor([0, 1, 0])
# Settings of both, and whether all layers have the same weights.
CASES = {
    "shared": ({}, {}, True),
    "deep": (
        {"depth": 3, "hidden_size": 7, "temperature": 0.5, "scaling_pass_value": 0.3},
        {"xlora_depth": 3, "xlora_size": 7, "softmax_temperature": 0.5, "scaling_pass_value": 0.3},
        False,
    ),
    "top-k": ({"top_k": 2}, {"top_k_lora": 2}, False),
    "softmax of the top k": (
        {"top_k": 2, "softmax": "top_k"},
        {"top_k_lora": 2, "enable_softmax_topk": True, "enable_softmax": False},
        False,
    ),
    "no softmax": ({"softmax": "none"}, {"enable_softmax": False}, True),
}


def skilled(
    backbone: Any, *, shared: bool = False, targets: list[str] = TARGETS, **settings: Any
) -> SkilledModel:
    slot = RoutingSlot()
    attachment = attach_skills(
        backbone.requires_grad_(False),
        lambda n_in, n_out: LoRAInventory(
            n_in, n_out, K, rank=RANK, scale=ALPHA / RANK, mix="outputs"
        ),
        targets=targets,
        slot=slot,
        granularity="model" if shared else "linear",
    )
    router = XLoRARouter(len(attachment.groups), 2, 1, K, 16, **settings)
    model = SkilledModel(backbone, router, slot)
    fill(model.router)
    for number, layer in enumerate(model.skilled_layers().values()):
        fill(layer.inventory, number)
    return model.eval()


def both(folder: Path, ours: dict, theirs: dict, shared: bool) -> tuple[SkilledModel, Any]:
    """Return our model and PEFT's, with the same weights."""
    tiny_llama().save_pretrained(folder / "base")
    adapters = {str(k): str(folder / str(k)) for k in range(K)}
    for k, path in adapters.items():
        sizes = {"r": RANK, "lora_alpha": ALPHA, "target_modules": LAYERS}
        save_lora(folder / "base", Path(path), 10 * int(k), **sizes)
    base = AutoModelForCausalLM.from_pretrained(folder / "base", use_cache=False)
    sizes = {"hidden_size": 16, "adapters": adapters, "layerwise_scalings": not shared}
    config = peft.XLoraConfig(task_type="CAUSAL_LM", **sizes, **theirs)
    other = peft.get_peft_model(base, config)
    classifier = other.base_model.internal_xlora_classifier.layers
    fill(classifier)
    backbone = AutoModelForCausalLM.from_pretrained(folder / "base")
    model = skilled(backbone, shared=shared, **ours)
    found = {n: m for n, m in base.named_modules() if isinstance(m, peft.tuners.lora.Linear)}
    with torch.no_grad():
        model.router.classifier.load_state_dict(classifier.state_dict())
        for path, layer in model.skilled_layers().items():
            for k in range(K):
                layer.inventory.down[k] = found[path].lora_A[str(k)].weight.T
                layer.inventory.up[k] = found[path].lora_B[str(k)].weight
    # Both number the layers in the order of the backbone.
    assert list(found) == list(model.skilled_layers())
    return model, other.eval()


def inputs() -> dict[str, torch.Tensor]:
    """Return prompts of different length, padded on the left."""
    ids = batch(3)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("case", CASES)
def test_logits_gradients_and_answers_equal_those_of_peft(tmp_path: Path, case: str) -> None:
    model, other = both(tmp_path, *CASES[case])
    found, due = model(TASKS, **inputs()).logits, other(**inputs()).logits
    # Rounding: PEFT scales a layer's input, and we scale the hidden units.
    torch.testing.assert_close(found, due, rtol=1e-4, atol=1e-5)
    for logits in (found, due):
        (logits.sin().sum()).backward()
    classifier = other.base_model.internal_xlora_classifier.layers
    for ours, theirs in zip(
        model.router.classifier.parameters(), classifier.parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for n_beams in (1, 3):
        search = {"max_new_tokens": 5, "min_new_tokens": 5, "num_beams": n_beams, "eos_token_id": 2}
        answers = model.generate(TASKS, **inputs(), **search)
        assert torch.equal(answers, other.generate(**inputs(), **search))


def test_a_step_with_a_cache_equals_the_whole_pass() -> None:
    model, given = skilled(tiny_llama(), scaling_pass_value=0.5), batch(3)["input_ids"]
    whole = model(TASKS, input_ids=given).logits
    cache = DynamicCache(config=model.backbone.config)
    with torch.no_grad():
        steps = [
            model(TASKS, input_ids=part, cache=cache, use_cache=True).logits
            for part in given.split([2, 1, 2], dim=1)
        ]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)
    filled = model(TASKS, input_ids=given, use_cache=True).cache
    with pytest.raises(ValueError, match="filled without the router's first pass"):
        model(TASKS, input_ids=given, cache=filled, use_cache=True)
    assert not model.slot.in_use


def test_refusals() -> None:
    with pytest.raises(ValueError, match="an encoder-decoder has two; use a decoder-only"):
        skilled(tiny_t5(), targets=["attention"])
    with pytest.raises(ValueError, match="'lm_head' is outside the stack"):
        skilled(tiny_llama(), targets=["lm_head"])
    with pytest.raises(ValueError, match="softmax 'top_k' needs top_k"):
        XLoRARouter(1, 1, 1, K, 16, softmax="top_k")
    with pytest.raises(ValueError, match="top_k"):
        XLoRARouter(1, 1, 1, K, 16, top_k=K + 1)


def test_trained_weights_get_gradients_under_autocast() -> None:
    model = skilled(tiny_llama())
    model.backbone.requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        model(TASKS, **batch(3)).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_checkpointing_and_packing() -> None:
    model, given = skilled(tiny_llama(), scaling_pass_value=0.5), batch(3)
    check_packing(model, 16)
    grads = []
    for again in (False, True):
        if again:
            model.enable_gradient_checkpointing()
        model.zero_grad()
        model.train()(TASKS, **given).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    assert len(grads[0]) == 2 + 2 * len(model.skilled_layers())
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
