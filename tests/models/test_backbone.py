"""Language models from folders and from random weights, and the mistakes on the way to them."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    ByT5Tokenizer,
    DebertaV2Model,
    ElectraForPreTraining,
    PreTrainedModel,
    RobertaForTokenClassification,
)

from helpers.backbones import BACKBONES, batch
from helpers.gyms import TINY_LLAMA, TINY_T5
from mttl.io.errors import ConfigError
from mttl.models.backbone import (
    build_random,
    hidden_states,
    is_decoder_only,
    is_encoder,
    load_pretrained,
    load_tokenizer,
    scale_initial_weights,
)
from mttl.models.model_names import check_model_name

T5: dict[str, Any] = TINY_T5["config"]
LLAMA: dict[str, Any] = TINY_LLAMA["config"]
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A T5 with its tokenizer."""
    BACKBONES["t5"]().save_pretrained(tmp_path / "model")
    ByT5Tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    return model.eval()(**batch(2)).logits


@pytest.mark.parametrize(
    ("model_type", "settings", "decoder_only"), [("t5", T5, False), ("llama", LLAMA, True)]
)
def test_random_models_take_their_settings(model_type, settings, decoder_only) -> None:
    model = build_random(model_type, settings)
    assert model.training
    assert {name: getattr(model.config, name) for name in settings} == settings
    assert is_decoder_only(model) == decoder_only
    assert logits(model).shape == (2, 5, 384)
    torch.manual_seed(0)
    same, other = weights(build_random(model_type, settings)), build_random(model_type, settings)
    torch.manual_seed(0)
    again = weights(build_random(model_type, settings))
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert any(not torch.equal(same[name], value) for name, value in weights(other).items())


@pytest.mark.parametrize(
    ("made", "trained"),
    [
        (BertForMaskedLM, True),
        (DebertaV2Model, False),
        (ElectraForPreTraining, False),
        (RobertaForTokenClassification, False),
    ],
)
def test_encoders_have_the_output_layer_of_their_checkpoint(made, trained, tmp_path) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = made.config_class(**sizes, intermediate_size=24, embedding_size=16)
    saved = made(config).eval()
    saved.save_pretrained(tmp_path)
    found, ids = load_pretrained(str(tmp_path)), torch.arange(3, 9)[None]
    assert is_encoder(found)
    assert (found.get_output_embeddings() is not None) is trained
    expected = saved.base_model(ids).last_hidden_state
    assert torch.equal(hidden_states(found, input_ids=ids), expected)


def test_an_encoder_decoder_starts_its_answer_with_padding() -> None:
    for settings, start in (({}, 0), ({"pad_token_id": 3}, 3), ({"decoder_start_token_id": 7}, 7)):
        assert build_random("t5", {**T5, **settings}).config.decoder_start_token_id == start


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("t55", {}, r"backbone.model_type \('t55'\) is not a model type .* Did you mean 't5'"),
        ("vit", {}, r"backbone.model_type \('vit'\) is not a language model; use t5, bart, llama"),
        ("t5", {"d_modl": 8}, "backbone.config.d_modl is not a setting of 't5'. Did you mean"),
        ("t5", {"d_model": "wide"}, "does not fit 't5': .* expected int, got str"),
        ("t5", {**T5, "d_model": -1}, "does not fit 't5': .* negative dimension -1"),
    ],
)
def test_settings_that_fit_no_model(model_type: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_random(model_type, settings)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_initial_scales_multiply_what_their_patterns_match() -> None:
    model = build_random("t5", T5)
    before = weights(model)
    expected = {"relative_attention_bias": 20.0, "q": 3.0}
    factors = {f"*{layer}.weight": factor for layer, factor in expected.items()}
    scale_initial_weights(model, {**factors, "encoder.*.q.weight": 0.5})
    for name, value in weights(model).items():
        factor = expected.get(name.split(".")[-2], 1.0)
        if name.startswith("encoder.") and name.endswith(".q.weight"):
            factor = 1.5
        torch.testing.assert_close(value, before[name] * factor, rtol=1e-6, atol=0)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("decoder.final_layer_norm.weights", "Did you mean 'decoder.final_layer_norm.weight'"),
        ("*relative_bias*", "Ends of their names: .*relative_attention_bias.weight"),
    ],
)
def test_a_pattern_that_matches_nothing(pattern: str, near: str) -> None:
    model = build_random("t5", T5)
    before = weights(model)
    with pytest.raises(ConfigError, match=near) as caught:
        scale_initial_weights(model, {pattern: 2.0})
    message = f"backbone.initial_scale: '{pattern}' matches no parameter of the backbone."
    assert str(caught.value).startswith(message)
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())


@pytest.mark.parametrize("family", BACKBONES)
def test_a_folder_gives_the_same_model(family: str, tmp_path: Path, capsys) -> None:
    original = BACKBONES[family]()
    original.save_pretrained(tmp_path)
    capsys.readouterr()
    loaded = load_pretrained(str(tmp_path))
    assert capsys.readouterr().err == ""  # no bar in a pipe
    assert type(loaded) is type(original)
    assert not loaded.training
    assert is_decoder_only(loaded) == (family in ("llama", "gpt2"))
    assert torch.equal(logits(loaded), logits(original))


@pytest.mark.parametrize(
    ("stored", "dtype", "expected"),
    [
        (torch.bfloat16, "float32", torch.float32),
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float32, "float16", torch.float16),
    ],
)
def test_the_dtype_is_the_one_asked_for(stored, dtype, expected, tmp_path) -> None:
    BACKBONES["llama"]().to(stored).save_pretrained(tmp_path)
    loaded = load_pretrained(str(tmp_path), dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {expected}


def drop_a_layer(folder: Path) -> None:
    kept = {name: value for name, value in load_file(folder / WEIGHTS).items() if ".1." not in name}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


UNREADABLE = "is a folder that could not be read: "
BARE = "is a folder without a model; use the folder of a model"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: os.truncate(folder / WEIGHTS, 500), UNREADABLE + "Error while deserial"),
        (lambda folder: (folder / WEIGHTS).unlink(), UNREADABLE + f"Error no file named {WEIGHTS}"),
        (drop_a_layer, "lacks .* weights .* Use a complete checkpoint of a language model"),
    ],
)
def test_a_damaged_folder_is_named(damage, message, folder) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.gguf"):
        load_pretrained(str(folder), gguf_file="nowhere.gguf")
    damage(folder)
    with pytest.raises(ConfigError, match=message) as caught:
        load_pretrained(str(folder))
    assert str(caught.value).startswith(f"backbone.name ('{folder}') ")


def test_a_folder_that_holds_nothing(tmp_path: Path) -> None:
    BACKBONES["bart"]().save_pretrained(tmp_path / "model")  # no files of a tokenizer
    with pytest.raises(ConfigError, match=r"backbone.tokenizer .* has no vocabulary: its files"):
        load_tokenizer(str(tmp_path / "model"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=BARE):
        load_pretrained(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=BARE):
        load_tokenizer(str(tmp_path / "empty"))


@pytest.mark.parametrize("load", [load_pretrained, load_tokenizer])
def test_a_path_is_not_looked_for_on_the_hub(load, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder.parent)
    shutil.copy(folder / "config.json", "file")
    for name in (str(folder / "config.json"), "./nowhere", "a/folder/nowhere", "~/models"):
        with pytest.raises(ConfigError, match="is neither a folder nor a valid name of") as caught:
            load(name)
        assert "hf download" not in str(caught.value)


@pytest.mark.parametrize("name", ["owner/nowhere", "nowhere"])
def test_a_missing_model_is_refused_at_once_if_the_hub_cannot_be_reached(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    begun = time.monotonic()
    with pytest.raises(
        ConfigError, match=f"'{name}'. is not a local folder .* refused. Download it"
    ):
        check_model_name("backbone.name", name)
    assert time.monotonic() - begun < 5
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"from the model hub: .*unset the `HF_HUB_OFFLINE`"):
        check_model_name("backbone.name", name)
    (tmp_path / "cache" / f"models--{name.replace('/', '--')}").mkdir(parents=True)
    check_model_name("backbone.name", name)  # cached: the hub is not asked
