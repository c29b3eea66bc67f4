"""Skills at the input and in attention, above backbones in fewer bits."""

from pathlib import Path

import pytest
import torch

from helpers.compare import relative_error
from helpers.quantised import ROUNDING, require, save_backbone
from helpers.skills import gradients, skilled
from mttl.merging.dequantise import dequantise
from mttl.models.backbone import load_pretrained

TASK_IDS = torch.tensor([2, 0, 1])
KINDS = ("head_mask, soft", "prefix", "prefix, joint", "prompt")


@pytest.mark.parametrize(
    ("family", "quantised"),
    [
        ("llama", "nf4"),
        pytest.param("t5", "nf4", marks=pytest.mark.slow),
        pytest.param("t5", "int8", marks=pytest.mark.slow),
    ],
)
def test_they_compute_what_they_do_above_the_same_weights_unpacked(
    tmp_path: Path, family: str, quantised: str
) -> None:
    require(quantised)
    folder = str(save_backbone(tmp_path / "base", family))
    ids = torch.arange(5, 23).view(3, 6)
    for kind in KINDS:
        found = []
        for unpacked in (False, True):
            backbone = load_pretrained(folder, quantize=quantised)  # type: ignore[arg-type]
            assert not unpacked or dequantise(backbone)
            model = skilled(backbone, inventory=kind, targets=["attention"])
            output = model(TASK_IDS, input_ids=ids, labels=ids)
            output.loss.backward()
            found.append((output.logits, gradients(model)))
        (logits, ours), (expected, theirs) = found
        assert relative_error(logits, expected) < ROUNDING
        for name, gradient in theirs.items():
            assert relative_error(ours[name], gradient) < 1e-3, name
