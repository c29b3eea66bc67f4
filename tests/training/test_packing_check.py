"""Rows that share a sequence: the same loss and gradients as apart, or a refusal."""

from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from helpers.backbones import BACKBONES
from helpers.compare import relative_error
from helpers.skills import INVENTORIES, ROUTERS, gradients, skilled
from mttl.data.collate import PackedCollator, TrainCollator
from mttl.io.errors import ConfigError
from mttl.training.loss import global_mean
from mttl.training.packing_check import check_packing
from mttl.training.text_to_text import TextToTextModule

DECODER_ONLY = ("llama", "gpt2")
LENGTHS = ((3, 2), (1, 4), (5, 1), (2, 2), (4, 3), (1, 1))


def rows(task_ids=(0, 2, 1, 0, 2, 1)) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(3)

    def ids(n: int) -> list[int]:
        return torch.randint(3, 40, (n,), generator=draw).tolist()

    return [
        {"input_ids": ids(prompt), "labels": ids(answer), "task_id": task_id}
        for (prompt, answer), task_id in zip(LENGTHS, task_ids, strict=True)
    ]


def losses_of(model: Any, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    holder: Any = SimpleNamespace(model=model)
    losses, labels, _ = TextToTextModule.nll(holder, batch)
    model.zero_grad()
    loss = global_mean(losses, labels)
    loss.backward()
    return float(loss.detach()), gradients(model)


CASES = [("gpt2", "lora-factors", "polytropon")]
CASES += [("llama", *pair) for pair in zip(cycle(INVENTORIES), ROUTERS, strict=False)]


@pytest.mark.parametrize(("family", "kind", "router"), CASES)
def test_a_packed_batch_has_the_loss_and_gradients_of_a_padded_one(family, kind, router) -> None:
    """To rounding: losses, and norms of Llama, are computed in single precision."""
    model = skilled(BACKBONES[family](), inventory=kind, router=router).double()
    padded = TrainCollator(0, True)(rows())
    packed = PackedCollator(0, True, packed_length=12)(rows())
    assert len(packed["input_ids"]) == 3
    assert_alike(losses_of(model, packed), losses_of(model, padded))


def assert_alike(found: tuple[float, dict], expected: tuple[float, dict]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        assert relative_error(found[1][name], value) < 1e-5, name


@pytest.mark.parametrize("family", DECODER_ONLY)
def test_rows_of_one_task_are_one_example(family) -> None:
    model = skilled(BACKBONES[family](), router="average").double()
    same = rows([1] * len(LENGTHS))
    packed = PackedCollator(0, True, packed_length=12)(same)
    routing = model.route(packed["task_ids"], inputs=packed)
    assert not routing.segments
    assert routing.mixing.shape[1] == 1
    assert_alike(losses_of(model, packed), losses_of(model, TrainCollator(0, True)(same)))


def test_checkpointing_replays_segments() -> None:
    model = skilled(BACKBONES["llama"]()).double().train()
    model.router.eval()  # or noise would differ
    packed = PackedCollator(0, True, packed_length=12)(rows())
    expected, theirs = losses_of(model, packed)
    model.enable_gradient_checkpointing()
    found, ours = losses_of(model, packed)
    assert found == expected
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value)


@pytest.mark.parametrize("family", DECODER_ONLY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoder_only_models_pass(family, dtype) -> None:
    model = skilled(BACKBONES[family]()).train()
    model.to(dtype)
    state = torch.get_rng_state()
    check_packing(model, 64)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_router_that_sees_prompts_is_refused() -> None:
    model = skilled(BACKBONES["llama"]())
    model.router.seen = ("prompts",)
    with pytest.raises(ConfigError, match="does not work with a router that reads prompts, which"):
        check_packing(model, 64)


class Reading(nn.Module):
    """A model whose rows see each other, or whose positions go on, or that takes none."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__()
        self.model, self.config, self.kind = model, model.config, kind

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor, use_cache: bool, **inputs: Any) -> Any:
        if self.kind == "no positions" and inputs:
            raise TypeError("forward() got an unexpected keyword argument 'position_ids'")
        if self.kind == "one text":
            inputs = {}
        if self.kind == "mean":
            output = self.model(input_ids, use_cache=use_cache, **inputs)
            output.logits = output.logits + output.logits.mean(1, keepdim=True)
            return output
        return self.model(input_ids, use_cache=use_cache, **inputs)


@pytest.mark.parametrize("family", DECODER_ONLY)
@pytest.mark.parametrize("kind", ["one text", "mean", "no positions"])
def test_a_model_whose_rows_see_each_other_is_refused(family, kind) -> None:
    model = skilled(BACKBONES[family]())
    model.backbone = Reading(model.backbone, kind)
    message = (
        "unexpected keyword"
        if kind == "no positions"
        else ": packed rows influence each other, or their positions do not"
    )
    with pytest.raises(ConfigError, match=rf"packed_length \(64\) does not work.*{message}"):
        check_packing(model, 64)
