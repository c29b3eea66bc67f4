"""A backbone that restores text, in a folder that transformers and configurations can load."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.command import ROOT, load_recipe
from helpers.gyms import write_config, write_gym
from mttl.build.build_backbone import build_backbone
from mttl.checkpoint import read_inventory
from mttl.command import USER_MISTAKE, run_command
from mttl.config.load import load_config
from mttl.gym.folder import Gym

SCRIPT = load_recipe(ROOT / "scripts" / "pretrain_denoiser.py")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "tiny.yaml", write_gym(tmp_path / "gym"))


def test_the_folder_holds_the_trained_backbone_without_skills(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "denoiser"
    assert SCRIPT.main(["-c", str(config), "--steps", "2", "--out", str(out)]) == 0
    trained = read_inventory(tmp_path / "denoiser-run" / "run")
    assert trained.backbone is not None
    # Every skill's change is still zero: nothing that was learned is left behind.
    assert all(float(x.abs().max()) < 1e-9 for name, x in trained.skills.items() if ".up" in name)
    settings = load_config(f"{config}+backbone/denoiser.yaml", [f"backbone.name={out}"])
    loaded = dict(build_backbone(settings.backbone).named_parameters())
    assert loaded.keys() == trained.backbone.keys()
    assert all(torch.equal(loaded[name], value) for name, value in trained.backbone.items())
    random_weights = dict(build_backbone(load_config(str(config), []).backbone).named_parameters())
    assert not torch.equal(random_weights["shared.weight"], loaded["shared.weight"])


def test_a_model_is_never_overwritten(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").touch()
    given = ["-c", str(config), "--out", str(tmp_path / "out")]
    assert run_command(lambda: SCRIPT.main(given)) == USER_MISTAKE
    assert "holds a model already" in " ".join(capsys.readouterr().err.split())


def test_a_frozen_backbone_and_a_foreign_folder_are_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other-run").mkdir()
    for files, out, message in (
        (f"{config}+backbone/t5_small.yaml", "out", "is frozen, and only the backbone"),
        (str(config), "other", "is needed for the training"),
    ):
        given = ["-c", files, "--out", str(tmp_path / out)]
        assert run_command(lambda given=given: SCRIPT.main(given)) == USER_MISTAKE
        assert message in " ".join(capsys.readouterr().err.split())


def test_only_training_rows_of_training_tasks_are_read(tmp_path: Path) -> None:
    gym = Gym(write_gym(tmp_path / "gym"))
    found = SCRIPT.training_texts(gym, ["copy"], [100])
    assert found == {row.input for row in gym.rows("copy", "train", 100)}


@given(text=st.text("abcdef", min_size=1, max_size=30), seed=st.integers(0, 99))
def test_corruption_only_replaces_spans(text: str, seed: int) -> None:
    corrupted = SCRIPT.corrupt(text, random.Random(seed))
    n_left = len(corrupted.replace("_", ""))
    assert n_left in (len(text), len(text) - round(0.3 * len(text)))
    letters = iter(text)  # what is left stands in the same order
    assert all(letter in letters for letter in corrupted.replace("_", ""))
