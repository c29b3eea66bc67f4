"""Models as hubs store them: old settings, copies of tied tensors, no prefixes, old buffers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from helpers.backbones import BACKBONES, batch, fill
from helpers.stored_forms import FORMS, store
from mttl.library.member_sources import describe_base
from mttl.merging.recipe import Recipe
from mttl.merging.run import merge_models


@pytest.mark.every(3)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("family", FORMS)
def test_base_and_task_vector_are_the_tuned_model(family: str, both: bool, tmp_path: Path) -> None:
    backbone = BACKBONES[family]()
    backbone.save_pretrained(tmp_path / "base")
    store(tmp_path / "base", family)
    auto = AutoModelForSeq2SeqLM if backbone.config.is_encoder_decoder else AutoModelForCausalLM
    tuned = auto.from_pretrained(tmp_path / "base").eval()
    fill(tuned, 3)
    tuned.save_pretrained(tmp_path / "tuned")
    if both:
        store(tmp_path / "tuned", family)
    recipe = Recipe.model_validate(
        {
            "base": {"model": str(tmp_path / "base")},
            "models": [{"model": str(tmp_path / "tuned")}],
            "method": {"kind": "arithmetic"},
        }
    )
    merge_models(recipe, tmp_path / "out")
    merged = auto.from_pretrained(tmp_path / "out").eval()
    inputs = batch(3)
    with torch.no_grad():
        torch.testing.assert_close(merged(**inputs).logits, tuned(**inputs).logits)
        assert (merged(**inputs).logits - backbone.eval()(**inputs).logits).abs().max() > 0.01
    stored = [load_file(tmp_path / name / "model.safetensors").keys() for name in ("base", "out")]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("family", FORMS)
def test_a_library_knows_a_base_in_both_forms(family: str, tmp_path: Path) -> None:
    BACKBONES[family]().save_pretrained(tmp_path)
    facts = describe_base(str(tmp_path))
    store(tmp_path, family)
    assert describe_base(str(tmp_path)) == facts
