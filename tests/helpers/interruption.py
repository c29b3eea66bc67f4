"""Ctrl-C at a chosen step of a run with policies."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pytorch_lightning import Callback, Trainer

import mttl.babyai as world
from mttl.training.stopping import StopRequested


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
