"""A backbone that restores text, in a folder that transformers and configurations can load."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.command import ROOT, load_recipe
from helpers.gyms import write_config, write_gym
from mttl.assembly.build_backbone import build_backbone
from mttl.checkpoints.saved_inventory import read_inventory
from mttl.config.load import load_config
from mttl.runtime.command import USER_MISTAKE, run_command
from mttl.tasks.folder import SPLITS, Gym

SCRIPT = load_recipe(ROOT / "scripts" / "gyms" / "pretrain_backbone.py")


@pytest.fixture
def gyms(tmp_path: Path) -> list[str]:
    """Two gyms of words so long that they hardly meet by chance."""
    return [
        str(write_gym(tmp_path / name, letters="abcdef", lengths=(5, 9), seed=seed))
        for seed, name in enumerate(("first", "second"))
    ]


@pytest.fixture
def given_(tmp_path: Path, gyms: list[str]) -> list[str]:
    config = write_config(tmp_path / "tiny.yaml", Path(gyms[0]))
    return ["-c", str(config), "--precision", "32-true", "--batch-size", "8", "--gyms", *gyms]


def test_the_folder_holds_the_trained_backbone_without_skills(given_, tmp_path) -> None:
    out = tmp_path / "model"
    assert SCRIPT.main([*given_, "--steps", "2", "--out", str(out)]) == 0
    trained = read_inventory(tmp_path / "model-run" / "run")
    assert trained.backbone is not None
    # Every skill's change is still zero: nothing that was learned is left behind.
    assert all(float(x.abs().max()) < 1e-9 for name, x in trained.skills.items() if ".up" in name)
    settings = load_config(given_[1], ["backbone.kind=pretrained", f"backbone.name={out}"])
    loaded = dict(build_backbone(settings.backbone).named_parameters())
    assert loaded.keys() == trained.backbone.keys()
    # It is stored in half precision, and computes in single precision.
    assert all(torch.equal(loaded[x], y.half().float()) for x, y in trained.backbone.items())
    random_weights = dict(build_backbone(load_config(given_[1]).backbone).named_parameters())
    assert not torch.equal(random_weights["shared.weight"], loaded["shared.weight"])
    # What was interrupted before the model was written goes on where it was.
    stored = (out / "model.safetensors").read_bytes()
    shutil.rmtree(out)
    assert SCRIPT.main([*given_, "--steps", "2", "--out", str(out)]) == 0
    assert (out / "model.safetensors").read_bytes() == stored


def test_a_frozen_backbone_and_folders_of_others_are_refused(given_, tmp_path, capsys) -> None:
    for name in ("other-run", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "config.json").touch()
    for files, out, message in (
        (given_[1], "full", "already contains a model"),
        (f"{given_[1]}+backbone/t5_small.yaml", "out", "is frozen, and only the backbone"),
        (given_[1], "other", "already exists; choose another"),
    ):
        given = ["-c", files, "--out", str(tmp_path / out)]
        assert run_command(lambda given=given: SCRIPT.main(given)) == USER_MISTAKE
        assert message in " ".join(capsys.readouterr().err.split())


def test_no_text_to_validate_or_score_in_any_gym_is_trained_on(gyms, tmp_path) -> None:
    first, second = (Gym(name) for name in gyms)
    # A development row of one gym gets into the training rows of the other.
    leaked = first.rows("copy", "dev", 100)[0].input
    with second.file("reverse", "train", 100).open("a", encoding="utf-8") as file:
        file.write(f"{leaked}\tx\n")
    SCRIPT.write_rows(tmp_path, {"first": first, "second": second}, 2, random.Random(0))
    restore = Gym(tmp_path / "gym")
    trained = [
        row.outputs[0] for name in restore.tasks() for row in restore.rows(name, "train", 100)
    ]
    left_out = SCRIPT.texts_of(first, SPLITS[1:]) | SCRIPT.texts_of(second, SPLITS[1:])
    assert leaked in left_out
    assert not left_out & set(trained)
    both = SCRIPT.texts_of(first, ["train"]) | SCRIPT.texts_of(second, ["train"])
    assert set(trained) == both - left_out
    scored = {row.outputs[0] for row in restore.rows("first", "test", 100)}
    assert scored == SCRIPT.texts_of(first, ["dev"])


@given(
    text=st.text("abcdef", min_size=1, max_size=30),
    kind=st.sampled_from(SCRIPT.CORRUPTIONS),
    seed=st.integers(0, 99),
)
def test_corruption_only_replaces_spans(text: str, kind: tuple[float, int], seed: int) -> None:
    corrupted = SCRIPT.corrupt(text, random.Random(seed), *kind)
    kept = corrupted.replace("_", "")
    # A span may take in the mark of an earlier one.
    assert len(text) - round(kind[0] * len(text)) <= len(kept) <= len(text)
    letters = iter(text)  # what is left stands in the same order
    assert all(letter in letters for letter in kept)


def test_the_shipped_model_is_small_and_whole() -> None:
    folder = ROOT / "data" / "backbone"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8e6
    small = load_config("crossfit.yaml+backbone/small_t5.yaml")
    described = dict(build_backbone(small.backbone).named_parameters())
    frozen = load_config("crossfit.yaml")
    shipped = dict(build_backbone(frozen.backbone).named_parameters())
    assert {name: x.shape for name, x in shipped.items()} == {
        name: x.shape for name, x in described.items()
    }
    assert all(x.dtype == torch.float32 and not x.requires_grad for x in shipped.values())
