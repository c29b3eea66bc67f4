"""Ctrl-C at a chosen step of a run, and whether it mattered."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, Trainer
from safetensors.torch import load_file

from mttl.checkpoints.run_folder import RunFolder
from mttl.training.callbacks import StopRequested


class SignalAt(Callback):
    """Sends this process a signal in the middle of a step, or of a validation."""

    def __init__(
        self, step: int, number: signal.Signals = signal.SIGINT, validating: bool = False
    ) -> None:
        self.step, self.number, self.validating = step, number, validating

    def on_before_optimizer_step(self, trainer: Trainer, *args: Any) -> None:
        if not self.validating and trainer.global_step == self.step:
            signal.raise_signal(self.number)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if self.validating and trainer.global_step == self.step:
            self.validating = False
            signal.raise_signal(self.number)


@contextmanager
def called_back(
    callback: Callback, monkeypatch: pytest.MonkeyPatch, builder: str
) -> Iterator[None]:
    """Give the trainers that a function builds in the block a callback, before all others."""
    module, _, name = builder.rpartition(".")
    with monkeypatch.context() as patch:
        build = getattr(__import__(module, fromlist=[name]), name)

        def with_callback(*args: Any, **kwargs: Any) -> Trainer:
            trainer = build(*args, **kwargs)
            trainer.callbacks.insert(0, callback)  # type: ignore[attr-defined]
            return trainer

        patch.setattr(builder, with_callback)
        yield


@contextmanager
def interrupted(
    step: int,
    monkeypatch: pytest.MonkeyPatch,
    builder: str = "mttl.babyai.train.build_policy_trainer",
) -> Iterator[None]:
    """Interrupt the run that the block starts; it must leave with its state saved."""
    saved = "the state was saved; continue with --resume"
    with (
        called_back(SignalAt(step), monkeypatch, builder),
        pytest.raises(StopRequested, match=saved),
    ):
        yield


def assert_same_run(resumed: RunFolder, whole: RunFolder) -> None:
    """Check that a run that was interrupted ended bit for bit as one that was not."""
    assert resumed.metrics.read_text() == whole.metrics.read_text()
    assert resumed.results.read_text() == whole.results.read_text()
    for part in (path.name for path in whole.skills.glob("*.safetensors")):
        first, second = (load_file(run.skills / part) for run in (resumed, whole))
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[key]) for key, value in first.items())
    for file in (path.name for path in whole.plots.glob("*.npz")):
        ours, theirs = (np.load(run.plots / file) for run in (resumed, whole))
        assert set(ours) == set(theirs)
        for key in ours:
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=f"{file}: {key}")
    last, expected = (torch.load(run.last, weights_only=False) for run in (resumed, whole))
    assert last["global_step"] == expected["global_step"]
    for key, value in last["state_dict"].items():
        assert torch.equal(value, expected["state_dict"][key]), key
