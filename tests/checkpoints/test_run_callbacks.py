"""The best weights, across stops and moves; the lock of a run's folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from helpers.trainer import quiet_trainer
from mttl.checkpoints import run_callbacks
from mttl.checkpoints.run_callbacks import CheckpointFile, RunLock, SaveBest, SaveLast
from mttl.checkpoints.run_folder import RunFolder
from mttl.data.loader import ResumableLoader
from mttl.data.samplers import TaskBatchSampler
from mttl.io.errors import ConfigError, TrainingError


class Scored(pl.LightningModule):
    """Counts its steps, and logs a given score at each validation."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.steps = torch.nn.Parameter(torch.zeros(()))
        self.scores = scores

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return -self.steps

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val/score", self.scores[self.global_step - 1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def fit(folder: Path, module: Scored, best: Any, n_steps: int, resume: bool = False) -> None:
    """Validate after each step."""
    trainer = quiet_trainer(
        max_steps=n_steps,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        callbacks=[best, SaveLast(folder / "last.ckpt")],
        plugins=[CheckpointFile()],
        num_sanity_val_steps=0,
        enable_checkpointing=True,
    )
    sampler = TaskBatchSampler([0] * 9, batch_size=1, seed=0)
    trainer.fit(
        module,
        ResumableLoader([0.0] * 9, sampler),
        DataLoader([torch.zeros(1)]),  # type: ignore[arg-type]
        ckpt_path=folder / "last.ckpt" if resume else None,
        weights_only=False,
    )


def run(folder: Path, scores: list[float], n_steps: int, resume: bool = False) -> SaveBest:
    best = SaveBest(folder / "best.ckpt")
    fit(folder, Scored(scores), best, n_steps, resume)
    return best


def test_only_a_better_score_takes_the_place_also_in_a_moved_run(tmp_path: Path) -> None:
    scores = [0.1, 0.3, 0.3, 0.2]
    run(tmp_path / "here", scores, 3)
    there = (tmp_path / "here").rename(tmp_path / "there")
    assert run(there, scores, 4, resume=True).score == pytest.approx(0.3)
    assert torch.load(there / "best.ckpt", weights_only=False)["global_step"] == 2
    assert sorted(path.name for path in there.iterdir()) == ["best.ckpt", "last.ckpt"]
    assert not (tmp_path / "here").exists()


def test_weights_that_are_not_finite_are_never_the_best(tmp_path: Path) -> None:
    class Diverging(Scored):
        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            self.steps.data.fill_(float("inf"))
            super().validation_step(batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Scored", Diverging)
        with pytest.raises(TrainingError, match="'steps' has values that are not finite, or too"):
            run(tmp_path, [0.5], 1)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_checkpoint_of_before(tmp_path, monkeypatch) -> None:
    path, files = tmp_path / "last.ckpt", CheckpointFile()
    files.save_checkpoint({"global_step": 1}, path)

    def fill(content: Any, temporary: Path) -> None:
        assert temporary.parent == tmp_path  # not in the folder of temporary files
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill)
    with pytest.raises(OSError, match="No space left"):
        files.save_checkpoint({"global_step": 2}, path)
    assert torch.load(path) == {"global_step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_not_all_machines_see_is_refused(monkeypatch, tmp_path) -> None:
    answers: list[Any] = [["seed: 1"], [("node0", True), ("node1", False)]]
    monkeypatch.setattr(run_callbacks, "gathered", lambda value: answers.pop(0))
    monkeypatch.setattr(run_callbacks, "PATIENCE", 0.0)
    lock = RunLock(RunFolder(tmp_path / "run"))
    match = "run' on node1 is not the folder of the first process; run.dir must"
    with pytest.raises(ConfigError, match=match):
        lock.setup(SimpleNamespace(is_global_zero=False), None, "fit")  # type: ignore[arg-type]
