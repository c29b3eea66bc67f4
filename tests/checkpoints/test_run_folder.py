from pathlib import Path

import pytest
import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only

from mttl.checkpoints.run_folder import (
    RunFolder,
    changed_settings,
    check_still_there,
    step_to_start_from,
)
from mttl.io.errors import CheckpointError, ConfigError, TrainingError

CONFIG = "optim: {lr: 0.1, betas: [0.9, 0.98]}\ntrainer: {max_steps: 10}\n"
STATE = {"global_step": 7, "callbacks": {"best": {"best_model_score": torch.tensor(0.5)}}}


@pytest.fixture
def interrupted(tmp_path: Path) -> RunFolder:
    """What a run leaves that was stopped after seven steps."""
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.checkpoints.mkdir(parents=True)
    folder.config.write_text(CONFIG)
    torch.save(STATE, folder.last)
    return folder


def test_a_new_run_starts_at_zero_in_a_folder_without_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new")
    assert step_to_start_from(folder, CONFIG, resume=False) == 0
    assert not folder.path.exists()
    with pytest.raises(ConfigError, match=r"cannot resume: '.*new' does not exist. Start without"):
        step_to_start_from(folder, CONFIG, resume=True)
    folder.path.mkdir()
    (folder.path / ".config.yaml.x1.part").touch()  # what a kill has left
    for resume in (False, True):
        assert step_to_start_from(folder, CONFIG, resume=resume) == 0
    (folder.path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="Continue the run with --resume"):
        step_to_start_from(folder, CONFIG, resume=False)


def test_an_interrupted_run_continues_at_its_step(interrupted, monkeypatch) -> None:
    with monkeypatch.context() as patch:  # another process may find what the first has written
        patch.setattr(rank_zero_only, "rank", 1)
        assert step_to_start_from(interrupted, CONFIG, resume=False) == 0
    longer = CONFIG.replace("max_steps: 10", "max_steps: 20")
    for config in (CONFIG, longer):
        assert step_to_start_from(interrupted, config, resume=True) == 7
    other = CONFIG.replace("lr: 0.1", "lr: 0.2")
    with pytest.raises(ConfigError, match=r"other settings: optim\.lr \(0\.1 before, 0\.2 now\)\."):
        step_to_start_from(interrupted, other, resume=True)
    check_still_there(interrupted)
    interrupted.config.unlink()
    with pytest.raises(TrainingError, match=r"' was removed during training and is incomplete"):
        check_still_there(interrupted)


def test_lost_and_damaged_files_are_named(interrupted: RunFolder) -> None:
    interrupted.last.write_bytes(interrupted.last.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"last\.ckpt' is damaged.* -k run\.name=NAME"):
        step_to_start_from(interrupted, CONFIG, resume=True)
    interrupted.config.unlink()
    with pytest.raises(CheckpointError, match=r"config\.yaml' does not exist"):
        step_to_start_from(interrupted, CONFIG, resume=True)


def test_lost_weights_of_the_best_validation_are_reported(interrupted, caplog) -> None:
    assert step_to_start_from(interrupted, CONFIG, resume=True) == 7
    assert "best.ckpt' is missing, so the best weights so far (score 50.0 %)" in caplog.text
    interrupted.best.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"best\.ckpt' is damaged.*Copy it again, or delete"):
        step_to_start_from(interrupted, CONFIG, resume=True)
    caplog.clear()
    torch.save({}, interrupted.best)
    assert step_to_start_from(interrupted, CONFIG, resume=True) == 7
    assert not caplog.text
    interrupted.last.unlink()  # killed before the first checkpoint
    assert step_to_start_from(interrupted, CONFIG, resume=True) == 0
    assert "has no saved state yet" in caplog.text
    with pytest.raises(ConfigError, match="other settings"):
        step_to_start_from(interrupted, CONFIG.replace("0.1", "0.2"), resume=True)


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ("a: {b: 1, c: {d: 2}}", "a: {c: {d: 2}, b: 1}", []),
        ("a: {b: [1, 2]}", "a: {b: [2, 1]}", ["a.b ([1, 2] before, [2, 1] now)"]),
        ("a: {b: 1}", "a: {b: 1, c: x}", ["a.c (None before, x now)"]),
        ("a: 1", "a: {b: 1}", ["a (1 before, None now)", "a.b (None before, 1 now)"]),
        ("trainer: {max_steps: 1}", "trainer: {max_steps: 2, loggers: [x]}", []),
        ("trainers: {a: 1}", "trainers: {a: 2}", ["trainers.a (1 before, 2 now)"]),
        (
            "skills: {kinds: [{kind: lora, rank: 8}, {kind: adapter}]}",
            "skills: {kinds: [{kind: lora, rank: 4}, {kind: adapter, stacked: null}]}",
            ["skills.kinds.0.rank (8 before, 4 now)"],
        ),
    ],
)
def test_changed_settings(before: str, now: str, changed: list[str]) -> None:
    assert changed_settings(before, now) == changed
