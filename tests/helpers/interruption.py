"""Ctrl-C at a chosen step of a run with policies, and whether it mattered."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, Trainer
from safetensors.torch import load_file

import mttl.babyai.train as world
from mttl.checkpoints.run_folder import RunFolder
from mttl.training.callbacks import StopRequested


class SignalAt(Callback):
    """Ctrl-C in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupted(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt the run that the block starts; it must leave with its state saved."""
    build = world.build_policy_trainer

    def with_signal(*args: Any, **kwargs: Any) -> Trainer:
        trainer = build(*args, **kwargs)
        trainer.callbacks.insert(0, SignalAt(step))  # type: ignore[attr-defined]
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(world, "build_policy_trainer", with_signal)
        with pytest.raises(StopRequested, match="the state was saved, continue with --resume"):
            yield


def assert_same_run(resumed: RunFolder, whole: RunFolder) -> None:
    """Check that a run that was interrupted ended bit for bit as one that was not."""
    assert resumed.metrics.read_text() == whole.metrics.read_text()
    assert resumed.results.read_text() == whole.results.read_text()
    for part in ("skills", "router", "backbone"):
        first, second = (load_file(run.skills / f"{part}.safetensors") for run in (resumed, whole))
        assert all(torch.equal(value, second[key]) for key, value in first.items())
    ours, theirs = (np.load(run.plots / "routing_history.npz") for run in (resumed, whole))
    assert ours["steps"].tolist() == theirs["steps"].tolist()
    np.testing.assert_array_equal(ours["weights"], theirs["weights"])
