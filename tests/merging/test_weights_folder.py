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


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    def refuses(message: str, place: Path = tmp_path) -> None:
        with pytest.raises(CheckpointError, match=message):
            len(Weights(place))

    refuses("does not exist", tmp_path / "none")
    refuses("use the folder of a model")
    (tmp_path / "pytorch_model.bin").touch()
    refuses(r"but pytorch_model.bin: load the model")
    index = {"weight_map": {"w": "1.safetensors", "v": "2.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    refuses("1.safetensors' does not exist")
    cut = tmp_path / "cut.safetensors"
    save_file({"w": torch.ones(2)}, cut)
    cut.write_bytes(cut.read_bytes()[:-3])
    refuses("is not valid safetensors", cut)
    save_file({"w": torch.zeros(2).to(torch.float8_e4m3fn)}, cut)
    refuses(r"'w' has the type F8_E4M3; only F64", cut)
