"""X-LoRA equals PEFT's, also in generation with a cache, which PEFT's does without."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from helpers.backbones import batch, fill, tiny_llama, tiny_t5
from helpers.peft_adapters import peft, save_lora
from mttl.models.generation import cache_argument
from mttl.routing import RoutingSlot, XLoRARouter
from mttl.skills import LoRAInventory, SkilledModel, attach_skills
from mttl.training.packing_check import check_packing

K, RANK = 3, 2
LAYERS = ["q_proj", "v_proj", "down_proj"]
TASKS = torch.tensor([0, 1, 0])
# Settings of ours, and of PEFT's.
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    (
        {"depth": 3, "hidden_size": 7, "temperature": 0.5, "scaling_pass_value": 0.3},
        {"xlora_depth": 3, "xlora_size": 7, "softmax_temperature": 0.5, "scaling_pass_value": 0.3},
    ),
    ({"top_k": 2}, {"top_k_lora": 2, "layerwise_scalings": True}),
    (
        {"top_k": 2, "softmax": "chosen"},
        {"top_k_lora": 2, "enable_softmax_topk": True, "enable_softmax": False},
    ),
    ({"softmax": "none"}, {"enable_softmax": False, "layerwise_scalings": True}),
]


def skilled(backbone: Any, targets: list[str], granularity: str = "linear", **settings: Any) -> Any:
    slot = RoutingSlot()
    attachment = attach_skills(
        backbone.requires_grad_(False),
        lambda n_in, n_out: LoRAInventory(n_in, n_out, K, rank=RANK, scale=1.0, mix="outputs"),
        targets=targets,
        slot=slot,
        granularity=granularity,
    )
    router = XLoRARouter(len(attachment.groups), 2, 1, K, 16, **settings)
    model = SkilledModel(backbone, router, slot)
    for number, part in enumerate([router, *model.skilled_layers().values()]):
        fill(part.inventory if number else part, number)
    return model.eval()


def plain(**settings: Any) -> SkilledModel:
    return skilled(tiny_llama(), ["attention"], scaling_pass_value=0.5, **settings)


def both(folder: Path, ours: dict, theirs: dict) -> tuple[SkilledModel, Any]:
    """Return our model and PEFT's, with the same weights."""
    tiny_llama().save_pretrained(folder / "base")
    for k in range(K):
        sizes = {"r": RANK, "lora_alpha": RANK, "target_modules": LAYERS}
        save_lora(folder / "base", folder / str(k), 10 * k, **sizes)
    base = AutoModelForCausalLM.from_pretrained(folder / "base", use_cache=False)
    adapters = {str(k): str(folder / str(k)) for k in range(K)}
    config = peft.XLoraConfig("CAUSAL_LM", hidden_size=16, adapters=adapters, **theirs)
    other = peft.get_peft_model(base, config).eval()
    classifier = other.base_model.internal_xlora_classifier.layers
    fill(classifier)
    granularity = "linear" if "layerwise_scalings" in theirs else "model"
    backbone = AutoModelForCausalLM.from_pretrained(folder / "base")
    model = skilled(backbone, [f"*.{name}" for name in LAYERS], granularity, **ours)
    found = {n: m for n, m in base.named_modules() if isinstance(m, peft.tuners.lora.Linear)}
    model.router.classifier.load_state_dict(classifier.state_dict())
    assert list(found) == list(model.skilled_layers())  # in this order, too
    for path, layer in model.skilled_layers().items():
        for k in range(K):
            layer.inventory.down.data[k] = found[path].lora_A[str(k)].weight.T
            layer.inventory.up.data[k] = found[path].lora_B[str(k)].weight
    return model, other


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_logits_gradients_and_answers_equal_those_of_peft(tmp_path: Path, ours, theirs) -> None:
    model, other = both(tmp_path, ours, theirs)
    ids = batch(3)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :2] = 0  # a shorter prompt
    given = {"input_ids": ids, "attention_mask": mask}
    logits = model(TASKS, **given).logits, other(**given).logits
    # Rounding: PEFT scales a layer's input, and we scale the hidden units.
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    for found in logits:
        found.sin().sum().backward()
    classifiers = model.router.classifier, other.base_model.internal_xlora_classifier.layers
    for one, due in zip(*(part.parameters() for part in classifiers), strict=True):
        torch.testing.assert_close(one.grad, due.grad, rtol=1e-3, atol=1e-4)
    for n_beams in (1, 3):
        search = {"max_new_tokens": 5, "num_beams": n_beams, "eos_token_id": None}
        answers = model.generate(TASKS, **given, **search)
        assert torch.equal(answers, other.generate(**given, **search))


def test_a_step_with_a_cache_equals_the_whole_pass() -> None:
    model, ids = plain(), batch(3)["input_ids"]
    name = cache_argument(model.backbone)
    whole = model(TASKS, input_ids=ids, use_cache=True)
    given = {name: DynamicCache(config=model.backbone.config), "use_cache": True}
    steps = [model(TASKS, input_ids=part, **given).logits for part in ids.split([2, 1, 2], dim=1)]
    # Rounding of shorter products.
    torch.testing.assert_close(torch.cat(steps, 1), whole.logits, rtol=1e-4, atol=1e-5)
    for cache in (whole[name], DynamicCache()):  # without layers, beams would not reorder them
        with pytest.raises(ValueError, match="the cache must be empty and have layers"):
            model(TASKS, input_ids=ids, use_cache=True, **{name: cache})
    assert not model.slot.in_use


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"an encoder-decoder has two \(T5For\w*\); use a"):
        skilled(tiny_t5(), ["attention"])
    with pytest.raises(ValueError, match="lm_head: the router weighs tokens before the output"):
        skilled(tiny_llama(), ["lm_head"])
    with pytest.raises(ValueError, match=r"top_k \(4\)"):
        plain(top_k=K + 1)


def test_checkpointing_and_packing() -> None:
    model = plain()
    other = copy.deepcopy(model)
    check_packing(model, 16)
    other.enable_gradient_checkpointing()
    for one in (model, other):
        one.train()(TASKS, **batch(3)).loss.backward()
    for one, due in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, due.grad)
    assert all(layer.inventory.up.grad.any() for layer in model.skilled_layers().values())
