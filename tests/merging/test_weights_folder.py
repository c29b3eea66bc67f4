"""Weights in one file or in shards, as transformers saves them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.backbones import tiny_t5
from mttl.io.errors import CheckpointError
from mttl.merging.weights_folder import INDEX, Weights


@pytest.mark.parametrize("size", ["5GB", "10KB"])
def test_every_parameter_is_there(tmp_path: Path, size: str) -> None:
    model = tiny_t5()
    model.save_pretrained(tmp_path, max_shard_size=size)
    weights = Weights(tmp_path)
    assert (len(weights.files) > 1) == (size == "10KB")
    expected = dict(model.named_parameters())
    assert set(weights) == set(expected)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_a_file_will_do(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "f.safetensors")
    assert Weights(tmp_path / "f.safetensors")["w"].tolist() == [1, 1]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        len(Weights(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="give the folder of a model"):
        len(Weights(tmp_path))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"but pytorch_model.bin: load the model"):
        len(Weights(tmp_path))
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="is damaged"):
        len(Weights(tmp_path))
    index = {"weight_map": {"w": "1.safetensors", "v": "2.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks shards: 1.safetensors, 2.safetensors"):
        len(Weights(tmp_path))
    for number in (1, 2):
        save_file({"w": torch.ones(2)}, tmp_path / f"{number}.safetensors")
    with pytest.raises(CheckpointError, match="'w' stands in"):
        len(Weights(tmp_path))


def test_asking_for_a_name_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "f.safetensors")
    monkeypatch.setattr(Weights, "read", lambda *given: pytest.fail("a tensor was read"))
    weights = Weights(tmp_path / "f.safetensors")
    assert "w" in weights
    assert "v" not in weights
