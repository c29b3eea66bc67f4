"""What every kind of skill promises on whole language models of four families."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from helpers.backbones import BACKBONES, batch, fill
from helpers.compare import relative_error
from helpers.skills import INVENTORIES, OTHERS, PLACED, gradients, kind_class, skilled
from mttl.merging.fold import fold, strip, task_mixing, unfold
from mttl.routing import Routing
from mttl.skills import SkilledModel

TASK_IDS = torch.tensor([2, 0, 1, 0])
# Float32 logits of these models lie 1e-6 (10 eps) from those of float64, on any processor.
ROUNDING = 1e-5
FOLDED = ("head_mask", "head_mask, soft", "norm")
# A softmax gives every column and every position some attention, whatever is there.
SEEN = ("prefix, joint", "prefix, computed", "prompt", "ipt")
HARD = ("head_mask",)
READING = ("supermask", "masked_sparse", "dora")
# Of kinds on linear layers `test_uses.py` tests what needs no model.
LINEAR = [*INVENTORIES, "krona-factors", *READING, "far", "mtl_lora", "vera"]
KINDS = [*PLACED, *LINEAR]
ATTACHMENT_POINTS = {kind: kind_class(kind).attachment_point for kind in KINDS}
# The first kind of every attachment point meets every family.
FIRST = {point: kind for kind, point in reversed(ATTACHMENT_POINTS.items())}.values()


def cases(kinds: Sequence[str], half: int | None = None) -> pytest.MarkDecorator:
    """Every family with every kind; what is rare is slow.

    Rare are all but the first kind of an attachment point with any family but one, and, where a
    half is given, the pairs of the other half: each kind with an encoder and with a decoder alone,
    which are others in the other half.
    """
    marked = []
    for place, kind in enumerate(kinds):
        for family in BACKBONES:
            if family == "gpt2" and kind in READING:  # they need an nn.Linear
                continue
            at_once = half is None or family in HALVES[(place + half) % 2]
            often = at_once if kind in FIRST else family == "t5"
            marks = () if often else (pytest.mark.slow,)
            marked.append(pytest.param(family, kind, marks=marks))
    return pytest.mark.parametrize(("family", "kind"), marked)


HALVES = (("t5", "llama"), ("bart", "gpt2"))
every, first_half, second_half = (cases([*PLACED], half) for half in (None, 0, 1))


def placed(family: str, kind: str, **settings: Any) -> SkilledModel:
    blocks = ATTACHMENT_POINTS[kind] == "block"
    # Which have no blocks of features.
    if blocks or kind in OTHERS or kind in ("invertible", "ladder", "ipt", "prefix, behind a gate"):
        settings["n_heads"] = 1
    # A bias of keys has no gradient but rounding: a softmax cancels it.
    targets = ["mlp"] if kind in LINEAR else ["attention", "mlp"] if blocks else ["attention"]
    return skilled(BACKBONES[family](), inventory=kind, targets=targets, **settings)


def run(model: SkilledModel, task_ids: Tensor = TASK_IDS, **inputs: Any) -> Any:
    return model(task_ids, **{**batch(len(task_ids)), **inputs})


def rows(chosen: Sequence[int], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor[list(chosen)] for name, tensor in inputs.items()}


@pytest.mark.every(3)
@cases([kind for kind in KINDS if kind not in SEEN], half=0)
def test_fresh_skills_change_nothing(family: str, kind: str) -> None:
    model = placed(family, kind, n_heads=2).train()
    for layer in model.skilled_layers().values():
        layer.inventory.reset_parameters()
    expected = BACKBONES[family]()(**batch(4)).logits
    assert relative_error(run(model).logits, expected) < ROUNDING


@pytest.mark.every(2)
@every
def test_a_mixed_batch_equals_a_loop_over_examples(family: str, kind: str) -> None:
    """Padding on both sides too, and gradients: a batch's are the sum of its examples'."""
    model = placed(family, kind, n_heads=2).double()
    inputs = batch(4)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, :2] = inputs["attention_mask"][2, -2:] = 0
    together = run(model, **inputs).logits
    together.square().sum().backward()
    found = gradients(model)
    model.zero_grad()
    for row in range(4):
        alone = model(TASK_IDS[row : row + 1], **rows([row], inputs)).logits
        alone.square().sum().backward()
        assert relative_error(together[row : row + 1], alone) < 1e-9
    expected = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert relative_error(found[name], gradient) < 1e-9, name
    assert relative_error(run(model, TASK_IDS.roll(1), **inputs).logits, together) > 1e-3


@pytest.mark.every(3)
@cases(KINDS, half=1)
def test_neighbours_of_one_task_are_merged_once(family: str, kind: str) -> None:
    model, inputs = placed(family, kind), batch(4)
    for tasks, n_examples in (([1, 1, 1, 1], 1), ([1, 1, 0, 0], 2), ([1, 0, 0, 0], 4)):
        ids = torch.tensor(tasks)
        assert model.route(ids).mixing.shape[1] == n_examples
        found = model(ids, **inputs).logits
        with model.slot.use(Routing(ids, model.router(ids))):  # each row an example
            assert relative_error(found, model.backbone(**inputs).logits) < ROUNDING


@pytest.mark.every(5)
@cases(KINDS)
def test_generation(family: str, kind: str) -> None:
    """Of a mixed batch as one by one, with a cache as without, with padding as without."""
    model = placed(family, kind)
    ids = batch(4)["input_ids"]
    mask = torch.ones_like(ids)
    text = slice(None, 3) if family in ("t5", "bart") else slice(2, None)  # padding: right, left
    mask[1] = 0
    mask[1, text] = 1
    ids = ids.masked_fill(mask == 0, 0)
    for n_beams in (1, 3):
        settings: dict[str, Any] = {"num_beams": n_beams, "max_new_tokens": 4, "min_new_tokens": 4}
        together = model.generate(TASK_IDS, input_ids=ids, attention_mask=mask, **settings)
        answers = together[:, -4:]
        for row in (0, 2, 3):
            one = slice(row, row + 1)
            alone = model.generate(TASK_IDS[one], input_ids=ids[one], **settings)
            assert torch.equal(together[one], alone)
        short = model.generate(TASK_IDS[1:2], input_ids=ids[1:2, text], **settings)
        assert torch.equal(answers[1:2], short[:, -4:])
        given = {"input_ids": ids, "attention_mask": mask}
        slow = model.generate(TASK_IDS, **given, use_cache=False, **settings)
        assert torch.equal(slow, together)
        if family == "llama":  # others give most tasks the same answers
            other = model.generate(TASK_IDS.roll(1), **given, **settings)
            assert not torch.equal(other, together)


@pytest.mark.every(3)
@cases(KINDS, half=0)
def test_gradient_checkpointing_changes_no_gradient(family: str, kind: str) -> None:
    found = []
    for checkpointing in (False, True):
        model = placed(family, kind, n_heads=2).double().train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        torch.manual_seed(3)  # the relaxed draws
        run(model).loss.backward()
        found.append(gradients(model))
    for name, gradient in found[1].items():
        assert relative_error(found[0][name], gradient) < 1e-9, name
        if "inventory" in name:
            assert gradient.view(len(gradient), -1).any(dim=1).all(), name


@pytest.mark.every(2)
@second_half
def test_half_precision(family: str, kind: str) -> None:
    model = placed(family, kind)
    expected = run(model).logits
    with torch.autocast("cpu", torch.bfloat16):
        mixed = run(model)
    mixed.loss.backward()
    assert all(gradient.dtype == torch.float32 for gradient in gradients(model).values())
    half = run(model.to(torch.bfloat16)).logits
    model.router.float()
    for layer in model.skilled_layers().values():
        layer.inventory.float()
    answers = model.generate(TASK_IDS, input_ids=batch(4)["input_ids"], max_new_tokens=3)
    assert len(answers) == 4
    for found in (mixed.logits, half, run(model).logits):
        assert found.dtype == torch.bfloat16 or family != "llama"
        if kind not in HARD:  # a rounding may flip a gate
            assert relative_error(found.float(), expected) < 0.1


@pytest.mark.every(3)
@first_half
def test_copies_and_saved_states_are_the_same_bit_for_bit(family: str, kind: str) -> None:
    model = placed(family, kind)
    expected = run(model).logits
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin).logits, expected)
    for layer in twin.skilled_layers().values():
        fill(layer.inventory, seed=9)
    assert torch.equal(run(model).logits, expected)
    assert not torch.equal(run(twin).logits, expected)
    state = {
        name: tensor.clone()  # layers may share one
        for name, tensor in model.state_dict().items()
        if "inventory" in name
    }
    twin.load_state_dict(load(save(state)), strict=False)
    assert torch.equal(run(twin).logits, expected)


@second_half
def test_skills_are_folded_or_refused(family: str, kind: str) -> None:
    model = placed(family, kind, n_heads=2)
    expected = run(model, torch.ones_like(TASK_IDS)).logits
    bare = BACKBONES[family]()(**batch(4)).logits
    assert relative_error(bare, expected) > 1e-3
    if kind in FOLDED:
        folded = fold(model, task_mixing(model.router, 1))
        assert relative_error(folded.backbone(**batch(4)).logits, expected) < ROUNDING
        unfold(folded)
    else:
        with pytest.raises(ValueError, match="cannot be merged"):
            fold(model, task_mixing(model.router, 1))
    without = strip(model)
    assert relative_error(without.backbone(**batch(4)).logits, bare) < ROUNDING
    unfold(without)
    assert torch.equal(run(model, torch.ones_like(TASK_IDS)).logits, expected)


@pytest.mark.parametrize("kind", PLACED)
def test_a_backbone_without_such_places(kind: str) -> None:
    with pytest.raises(ValueError, match=r"target '(attention|input|norms|stack)' matches no .*:"):
        skilled(nn.Sequential(nn.Linear(4, 4)), inventory=kind, targets=["attention"])
