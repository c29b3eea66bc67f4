"""Prompts, beside PEFT's prompt tuning and text that is embedded by hand."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.backbones import BACKBONES, batch, tiny_gpt2, tiny_llama, tiny_t5
from helpers.compare import relative_error
from helpers.skills import skilled
from mttl.models.teacher_forcing import forced_logits
from mttl.routing import AverageRouter
from mttl.skills import PromptInventory, SkilledModel

ONE = torch.zeros(4, dtype=torch.long)
IDS = torch.tensor([2, 0, 1, 0])


def one_task(backbone: nn.Module, length: int = 3) -> SkilledModel:
    made = partial(PromptInventory, length=length)
    sizes = {"n_tasks": 1, "n_skills": 1}
    return skilled(backbone, inventory=made, router=AverageRouter, targets=["input"], **sizes)


@pytest.mark.parametrize("family", BACKBONES)
def test_equals_prompt_tuning_of_peft(family: str) -> None:
    """Logits and gradients; PEFT's decoder-only logits have the prompt's positions too."""
    peft = pytest.importorskip("peft")
    length, inputs = 3, batch(4)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, -2:] = 0
    encoder_decoder = family in ("t5", "bart")
    config = peft.PromptTuningConfig(
        task_type="SEQ_2_SEQ_LM" if encoder_decoder else "CAUSAL_LM",
        num_virtual_tokens=length,
        num_transformer_submodules=1,
    )
    theirs = peft.get_peft_model(BACKBONES[family]().double(), config).double().eval()
    ours = one_task(BACKBONES[family]().double(), length).double()
    weight = theirs.prompt_encoder["default"].embedding.weight
    (layer,) = ours.skilled_layers().values()
    own: Any = layer.inventory
    with torch.no_grad():
        own.prompts.copy_(weight.t()[None])
    given = {"input_ids": inputs["input_ids"], "attention_mask": mask}
    if encoder_decoder:
        given["decoder_input_ids"] = inputs["labels"]
    expected = theirs(**given).logits
    found = ours(ONE, **given).logits
    assert found.shape[1] == 5
    expected = expected[:, -5:]
    assert relative_error(found, expected) < 1e-9
    found.square().sum().backward()
    expected.square().sum().backward()
    assert relative_error(own.prompts.grad[0].t(), weight.grad) < 1e-9


def by_hand(backbone: Any, prompt: Tensor, ids: Tensor, n_new: int) -> list[int]:
    """Greedy tokens of a decoder-only model, each from the whole text behind the prompt."""
    for _ in range(n_new):
        embedded = backbone.get_input_embeddings().base(ids)
        logits = backbone(inputs_embeds=torch.cat([prompt, embedded[0]])[None]).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return ids[0].tolist()


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_generates_as_the_embedded_text_by_hand(make: Any) -> None:
    model = skilled(make(), inventory="prompt", targets=["input"])
    (layer,) = model.skilled_layers().values()
    plain = make()
    plain.set_input_embeddings(nn.Module())
    plain.get_input_embeddings().base = make().get_input_embeddings()
    ids = batch(4)["input_ids"]
    settings: Any = {"max_new_tokens": 5, "eos_token_id": -1, "do_sample": False}
    found = model.generate(IDS, input_ids=ids, **settings)
    prompts = layer.inventory.merge(model.route(IDS).weights[0])[0]
    for row in range(4):
        one = slice(row, row + 1)
        expected = by_hand(plain, prompts[row], ids[one], 5)
        assert found[row].tolist() == expected


def test_answers_alone_are_computed_as_all_logits() -> None:
    model = skilled(tiny_llama(), inventory="prompt", targets=["input"])
    inputs = batch(4)
    labels = inputs["input_ids"].clone()
    labels[:, :2] = -100
    mask = torch.ones_like(labels)
    given = {"input_ids": inputs["input_ids"], "attention_mask": mask}
    whole = model(IDS, **given).logits
    with model.slot.use(model.route(IDS)):
        logits, targets, places = forced_logits(model.backbone, {**given, "labels": labels})
    assert targets.shape == labels.shape
    assert relative_error(logits, whole.flatten(0, 1)[places]) < 1e-5
    assert model(IDS, **given, labels=labels).loss.isfinite()


def test_only_the_stack_that_reads_the_text_has_prompts() -> None:
    backbone = tiny_t5()
    model = one_task(backbone)
    assert list(model.skilled_layers()) == ["encoder.embed_tokens"]
    assert list(one_task(tiny_gpt2()).skilled_layers()) == ["transformer.wte"]


def test_calls_that_have_no_place_for_prompts_are_refused() -> None:
    model = one_task(tiny_llama())
    inputs = {"input_ids": batch(1)["input_ids"]}
    with pytest.raises(ValueError, match="prompts need input_ids by name, an attention"):
        model(ONE[:1], inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(ValueError, match="a dynamic cache of keys and values"):
        model.generate(ONE[:1], **inputs, cache_implementation="static", max_new_tokens=2)
