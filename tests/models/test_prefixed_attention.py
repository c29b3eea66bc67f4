"""Attention that sees prefixes, in backbones that are compiled."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from helpers.backbones import batch, tiny_llama, tiny_t5
from helpers.compare import relative_error
from helpers.skills import gradients, skilled
from mttl.models.prefixed_attention import NAME, read_prefixes

TASK_IDS = torch.tensor([2, 0, 1, 0])


def test_attention_without_prefixes_is_what_it_was() -> None:
    model = tiny_t5()
    expected = model(**batch(4)).logits
    read_prefixes(model)
    assert model.config._attn_implementation == NAME + "sdpa"
    assert torch.equal(model(**batch(4)).logits, expected)
    assert "attn" not in model.config.to_json_string()  # it is saved as it was


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head_mask", "prefix", "prompt"])
def test_a_compiled_backbone_computes_the_same(kind: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = skilled(tiny_llama(), inventory=kind, targets=["attention"]).double()
    found = []
    for compiled in (False, True):
        if compiled:
            model.backbone.compile(backend=counter)  # type: ignore[operator]
        model.zero_grad()
        output = model(TASK_IDS, **batch(4))
        output.loss.backward()
        found.append((output.logits, gradients(model)))
    assert counter.frame_count  # one graph outside of tests, which check shapes on the way
    (logits, ours), (expected, theirs) = found
    assert relative_error(logits, expected) < 1e-9
    for name, gradient in theirs.items():
        assert relative_error(ours[name], gradient) < 1e-9, name
