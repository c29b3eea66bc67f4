"""A hostile file of each kind runs nothing: what it would run leaves a mark, and none is left."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from helpers.gyms import TINY_T5
from mttl.checkpoints.run_folder import RunFolder, step_to_start_from
from mttl.config.load import load_any_config
from mttl.io.errors import CheckpointError, ConfigError, TaskError
from mttl.merging.recipe import read_recipe
from mttl.merging.weights_folder import Weights
from mttl.models.backbone import build_random, load_pretrained, load_tokenizer
from mttl.peft_format.peft_folder import PREFIX, read_peft
from mttl.sparse.loop import load_state
from mttl.tasks.task_file import load_tasks


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Return the file that hostile content would write."""
    path = tmp_path / "ran"
    yield path
    assert not path.exists()


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


def test_the_payload_would_leave_a_mark(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


FORMS: list[Callable[[Path, Payload], Any]] = [
    lambda path, payload: torch.save(payload, path),
    lambda path, payload: torch.save({"global_step": 3, "state_dict": {}, "x": payload}, path),
    lambda path, payload: torch.save(
        {"global_step": 3, "x": payload}, path, _use_new_zipfile_serialization=False
    ),
    lambda path, payload: path.write_bytes(pickle.dumps({"global_step": payload})),
]


@pytest.mark.parametrize("write", FORMS)
def test_a_checkpoint(tmp_path: Path, marker: Path, write: Callable) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    folder.config.write_text("run: {seed: 1}\n")
    write(folder.last, Payload(marker))
    with pytest.raises(CheckpointError, match=r"has more than tensors|is damaged"):
        step_to_start_from(folder, "run: {seed: 1}\n", resume=True)


@pytest.mark.parametrize("write", FORMS)
def test_a_state_of_a_loop(tmp_path: Path, marker: Path, write: Callable) -> None:
    write(tmp_path / "state.pt", Payload(marker))
    with pytest.raises(CheckpointError, match=r"has more than tensors|is damaged"):
        load_state(tmp_path / "state.pt", {}, resume=True)


def test_the_weights_that_were_best(tmp_path: Path, marker: Path) -> None:
    from mttl.training.text_to_text import TextToTextModule

    FORMS[1](tmp_path / "best.ckpt", Payload(marker))
    module = TextToTextModule.__new__(TextToTextModule)
    with pytest.raises(CheckpointError, match="has more than tensors and plain data, so loading"):
        TextToTextModule.load_weights(module, tmp_path / "best.ckpt")


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    build_random("t5", TINY_T5["config"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_backbone_with_a_program(backbone: Path, marker: Path) -> None:
    code = f"open({str(marker)!r}, 'w')\nclass C: pass\nclass M: pass\n"
    (backbone / "hostile.py").write_text(code)
    config = json.loads((backbone / "config.json").read_text())
    maps = {"AutoConfig": "hostile.C", "AutoModelForSeq2SeqLM": "hostile.M"}
    maps["AutoTokenizer"] = ["hostile.C", None]
    config |= {"auto_map": maps, "model_type": "hostile"}
    (backbone / "config.json").write_text(json.dumps(config))
    (backbone / "tokenizer_config.json").write_text(json.dumps({"auto_map": maps}))
    with pytest.raises(ConfigError, match="could not be read"):
        load_pretrained(str(backbone))
    with pytest.raises(ConfigError, match="could not be read"):
        load_tokenizer(str(backbone))


@pytest.mark.parametrize("write", FORMS)
def test_a_backbone_that_is_pickled(backbone: Path, marker: Path, write: Callable) -> None:
    (backbone / "model.safetensors").unlink()
    write(backbone / "pytorch_model.bin", Payload(marker))
    with pytest.raises(ConfigError, match="could not be read"):
        load_pretrained(str(backbone))
    with pytest.raises(CheckpointError, match=r"but pytorch_model.bin: load the model"):
        list(Weights(backbone))


def test_demonstrations(tmp_path: Path, marker: Path) -> None:
    pytest.importorskip("minigrid", reason="needs the extra `babyai`")
    from mttl.babyai.demonstration_loader import read_demonstrations

    path = tmp_path / "demonstrations.npz"
    names = ("level", "seed", "mission", "length", "images", "directions", "actions")
    payload = np.array([Payload(marker)], dtype=object)
    np.savez(path, allow_pickle=True, **dict.fromkeys(names, payload))
    with pytest.raises(ConfigError, match="Object arrays cannot be loaded"):
        read_demonstrations(path, ["GoToObj"])
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ConfigError, match="not a file of demonstrations, or damaged"):
        read_demonstrations(path, ["GoToObj"])


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "peft"
    folder.mkdir()
    name = f"{PREFIX}encoder.block.0.layer.0.SelfAttention.q"
    tensors = {
        f"{name}.lora_A.weight": torch.ones(2, 16),
        f"{name}.lora_B.weight": torch.ones(8, 2),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 2}')
    return folder


def test_an_adapter_that_is_pickled(adapter: Path, marker: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(Payload(marker), adapter / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="a pickle, which can run any code"):
        read_peft(adapter)
    shutil.copy(adapter / "adapter_model.bin", adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_peft(adapter)


@pytest.mark.parametrize(
    ("read", "error"),
    [(read_recipe, ConfigError), (load_tasks, TaskError), (load_any_config, ConfigError)],
)
def test_recipes_tasks_and_configurations(tmp_path, marker, read, error) -> None:
    path = tmp_path / "it.yaml"
    for key in ("method", "tasks", "run"):
        path.write_text(f"{key}: !!python/object/apply:os.system [touch {marker}]\n")
        with pytest.raises(error, match=re.escape(str(path))):
            read(str(path))


@pytest.mark.parametrize("name", ["<img onerror=alert(1) src=x>", "</script><script>alert(1)//"])
def test_a_page_with_a_task_that_is_a_program(tmp_path: Path, name: str) -> None:
    pytest.importorskip("scipy")
    from mttl.analysis.explore.explore_page import explore_page
    from mttl.analysis.routing_record import read_record
    from mttl.analysis.routing_view import RoutingView

    (tmp_path / "plots").mkdir()
    weights = np.array([[[0.9, 0.1], [0.2, 0.8]]])
    named = {"tasks": np.array([name, "b"]), "groups": np.array([f"{name}/0"])}
    path = tmp_path / "plots" / "routing.npz"
    np.savez(path, weights=weights, probabilities=weights, **named)
    record = read_record(tmp_path)
    page = explore_page([RoutingView(record, (name, "b"))])
    # In the page's data it is text, whose brackets are escaped; elsewhere it does not stand.
    assert name not in page
    assert name.partition("(")[0] not in page
