"""Backbones that are loaded into fewer bits, and what is refused."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.backbones import VOCABULARY
from helpers.quantised import FAMILIES, KINDS, require, save_backbone
from mttl.aggregation.packed_weights import packed_layers
from mttl.checkpoints.model_tensors import backbone_parameters, fingerprint
from mttl.io.errors import ConfigError
from mttl.merging.fold import dequantise, quantisation_error
from mttl.models.backbone import load_pretrained
from mttl.models.quantised import check_quantisation

# What stays: the head, and the layers that a family needs in single precision.
KEPT = {"t5": {"lm_head", "wo"}, "llama": {"lm_head"}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    return {family: save_backbone(root / family, family) for family in FAMILIES}


def load(folder: Path, kind: str, **settings: str):
    require(kind)
    return load_pretrained(str(folder), quantize=kind, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_layers_but_the_head_are_packed_and_unpacked_nearly_the_plain_ones(
    folders: dict[str, Path], family: str, kind: str, tmp_path: Path
) -> None:
    model, original = load(folders[family], kind), load_pretrained(str(folders[family]))
    packed = packed_layers(model)
    plain = {
        path.rpartition(".")[2]
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and path not in packed
    }
    ragged = {"down_proj"} if (family, kind) == ("llama", "nf4") else set()  # 96 is not 1.5 x 64
    assert plain == KEPT[family] | ragged
    assert len(packed) >= 12
    assert not model.training
    assert not any(
        value.requires_grad for name, value in model.named_parameters() if name in packed
    )
    ids = torch.arange(3, VOCABULARY)[None]
    overall, largest, _ = quantisation_error(model, original)
    logits = model(input_ids=ids, labels=ids).logits
    assert 0 < overall <= largest < (0.01 if kind == "int8" else 0.12)
    assert dequantise(model) == len(packed)
    assert packed_layers(model) == {}
    assert torch.allclose(model(input_ids=ids, labels=ids).logits, logits, atol=1e-4)
    # It is saved as a model like any other.
    model.save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    again = load_pretrained(str(tmp_path))
    assert torch.equal(
        again(input_ids=ids, labels=ids).logits, model(input_ids=ids, labels=ids).logits
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_weights_at_loading(folders, kind, tmp_path) -> None:
    """An evaluation changes nothing; half precision is the same model; others are others."""

    def mark(model: nn.Module) -> str:
        return fingerprint(backbone_parameters(model), values=True)

    model = load(folders["llama"], kind)
    loaded = mark(model)
    model.eval().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, min_new_tokens=3)
    assert mark(model) == loaded
    assert mark(load(folders["llama"], kind)) == loaded
    other = save_backbone(tmp_path, "llama", seed=1)
    assert mark(load(other, kind)) != loaded


def test_a_folder_in_four_bits_is_loaded_as_it_was_saved(folders, tmp_path) -> None:
    """As those are that others have saved, with scales that are quantised too."""
    require("nf4")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    given = {"quantization_config": settings, "device_map": {"": "cpu"}}
    AutoModelForCausalLM.from_pretrained(folders["llama"], **given).save_pretrained(tmp_path)
    model = load_pretrained(str(tmp_path))
    marks = [fingerprint(backbone_parameters(model), values=True)]
    ids = torch.tensor([[5, 6, 7]])
    before = model(input_ids=ids).logits
    model.eval().generate(ids, max_new_tokens=3)
    assert torch.equal(model(input_ids=ids).logits, before)
    marks += [
        fingerprint(backbone_parameters(one), values=True)
        for one in (model, load_pretrained(str(tmp_path)))
    ]
    assert len(set(marks)) == 1
    message = f"backbone.quantize ('int8') cannot quantise '{tmp_path}', which is already stored"
    with pytest.raises(ConfigError) as caught:
        load_pretrained(str(tmp_path), quantize="int8")
    assert str(caught.value).startswith(message)
    with pytest.raises(ConfigError, match=r"\(bitsandbytes\), which cannot be trained"):
        load_pretrained(str(tmp_path), train=True)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *given: None if name == "bitsandbytes" else find(name, *given),
    )
    message = r"backbone\.quantize \('nf4'\) needs bitsandbytes: pip install bitsandbytes"
    with pytest.raises(ConfigError, match=message):
        check_quantisation("nf4")
    with pytest.raises(ConfigError, match=message):
        load_pretrained("nowhere", quantize="nf4")


def test_int4_is_for_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    require("int4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_quantisation("nf4")
    with pytest.raises(ConfigError, match=r"\('int4'\) has only a CPU kernel.* use nf4"):
        check_quantisation("int4")
