"""Checkpoints and signals in the steps of real trainers, on a model of one number."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from helpers.trainer import quiet_trainer
from mttl.checkpoints.run_callbacks import CheckpointFile, SaveLast
from mttl.data.loader import ResumableLoader
from mttl.data.samplers import TaskBatchSampler
from mttl.io.errors import StopRequested, TrainingError
from mttl.routing import CategoricalRouter, PolytroponRouter
from mttl.training.callbacks import GracefulStop, TemperatureAnnealing
from mttl.training.loggers import MetricsFile

N_BATCHES = 12


class Sum(pl.LightningModule):
    """Adds up what it sees, so that its weight says which batches it has learned from."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return -self.total * batch.sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Recorder(SaveLast):
    """Notes the step and the batches seen whenever it is asked to save in training."""

    def __init__(self, checkpoint: Path, every_n_steps: int = 1000) -> None:
        super().__init__(checkpoint, every_n_steps)
        self.saved: list[tuple[int, int]] = []

    def save(self, trainer: pl.Trainer) -> None:
        before = trainer.global_step, trainer.fit_loop.total_batch_idx + 1
        modified = self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else None
        super().save(trainer)
        if self.checkpoint.stat().st_mtime_ns != modified:
            self.saved.append(before)


class Raise(Callback):
    """Sends this process signals in the middle of a batch."""

    def __init__(self, batch: int, *numbers: signal.Signals) -> None:
        self.batch, self.numbers = batch, numbers

    def on_before_backward(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.fit_loop.total_batch_idx == self.batch:
            for number in self.numbers:
                signal.raise_signal(number)


def loader() -> ResumableLoader:
    """Return batches of one row each, from 1 to 12 in some order."""
    sampler = TaskBatchSampler([0] * N_BATCHES, batch_size=1, seed=0)
    return ResumableLoader([float(i + 1) for i in range(N_BATCHES)], sampler)


def trainer(*callbacks: Callback, **settings: Any) -> pl.Trainer:
    return quiet_trainer(
        **{"max_steps": 6, "num_sanity_val_steps": 0, "limit_val_batches": 0.0, **settings},
        enable_checkpointing=True,
        plugins=[CheckpointFile()],
        callbacks=list(callbacks),
    )


@pytest.fixture
def last(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "last.ckpt", every_n_steps=2)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever happens in a run, the handlers of signals are those of before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(
    ("every", "end", "steps"), [(2, 5, [1, 2, 4, 5]), (40, 100, [2, 4, 8, 16, 32, 64, 100])]
)
def test_saves_early_at_distances_that_double_and_at_the_end(every, end, steps, tmp_path) -> None:
    last = Recorder(tmp_path / "last.ckpt", every_n_steps=every)
    trainer(last, max_steps=end).fit(Sum(), loader())
    assert last.saved == [(step, step) for step in steps]


def test_a_resumed_run_does_not_save_before_its_first_step(last: Recorder) -> None:
    trainer(last, max_steps=2, accumulate_grad_batches=3).fit(Sum(), loader())
    again = Recorder(last.checkpoint, every_n_steps=2)
    resumed = trainer(again, max_steps=3, accumulate_grad_batches=3)
    resumed.fit(Sum(), loader(), ckpt_path=last.checkpoint, weights_only=False)
    assert again.saved == [(3, 9)]


def test_what_was_logged_is_on_the_disk_before_the_checkpoint(last: Recorder) -> None:
    """A resumed run takes the rows of earlier steps from there."""
    metrics = MetricsFile(last.checkpoint.with_name("metrics.csv"))
    steps: list[int] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
            metrics.log_metrics({"x": 1.0}, trainer.global_step)

        def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
            if last.saved:
                steps.append(max(MetricsFile(metrics.path, keep_until=9).rows))
                assert steps[-1] == last.saved[-1][0]

    trainer(last, Watch(), logger=metrics, log_every_n_steps=100).fit(Sum(), loader())
    assert steps == [1, 2, 2, 4, 4]


@pytest.mark.parametrize("value", [float("nan"), 1e30])  # the norm of the second is infinite
def test_weights_that_are_not_finite_are_not_saved(last: Recorder, value: float) -> None:
    class Diverge(Callback):
        def on_before_backward(self, trainer: pl.Trainer, module: Any, loss: Tensor) -> None:
            if trainer.global_step == 4:
                module.total.data.fill_(value)

    with pytest.raises(TrainingError, match="'total' has values that are not finite, or too large"):
        trainer(Diverge(), last).fit(Sum(), loader())
    assert torch.load(last.checkpoint, weights_only=False)["global_step"] == 4


def test_epochs_are_counted_however_often_a_run_was_killed(tmp_path: Path) -> None:
    """Each start is killed after the first checkpoint of an epoch's end; the epochs add up."""
    path = tmp_path / "last.ckpt"

    class Kill(Callback):
        def __init__(self, step: int) -> None:
            self.step = step

        def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
            if trainer.global_step == self.step:
                raise ArithmeticError

    given = {"max_steps": -1, "max_epochs": 5}
    for start in range(1, 4):
        last = SaveLast(path, every_n_steps=N_BATCHES * start)
        last._saved_at = 0
        with pytest.raises(ArithmeticError):
            trainer(Kill(N_BATCHES * start + 3), last, **given).fit(
                Sum(), loader(), ckpt_path=path if start > 1 else None, weights_only=False
            )
    resumed, module = trainer(SaveLast(path), **given), Sum()
    resumed.fit(module, loader(), ckpt_path=path, weights_only=False)
    assert resumed.global_step == 5 * N_BATCHES
    assert resumed.current_epoch == 5
    assert float(module.total.detach()) == 5 * sum(range(1, N_BATCHES + 1))


@pytest.mark.parametrize("batch", [6, 7, 8])
def test_a_signal_finishes_all_batches_of_the_step(tmp_path: Path, batch: int) -> None:
    last = SaveLast(tmp_path / "last.ckpt")
    stop = GracefulStop(last)
    batches = loader()
    runner = trainer(Raise(batch, signal.SIGTERM), last, stop, accumulate_grad_batches=3)
    with pytest.raises(StopRequested) as caught:
        runner.fit(Sum(), batches)
    assert caught.value.number == stop.request.received == signal.SIGTERM
    state = torch.load(last.checkpoint, weights_only=False)
    assert state["global_step"] == 3
    assert batches.state_dict()["batch"] == 9
    # The weight is the sum of the three steps, each the mean of its three batches.
    expected = sum(float(value) for value, _ in zip(loader(), range(9), strict=False)) / 3
    assert float(state["state_dict"]["total"]) == pytest.approx(expected, rel=1e-6)


def test_a_second_signal_does_not_wait_for_the_step(tmp_path: Path) -> None:
    last = SaveLast(tmp_path / "last.ckpt")
    runner = trainer(Raise(3, signal.SIGTERM, signal.SIGINT), last, GracefulStop(last))
    with pytest.raises(StopRequested, match="stopped by SIGINT; no state had been saved yet"):
        runner.fit(Sum(), loader())
    assert not last.checkpoint.exists()


@pytest.mark.parametrize("kind", [PolytroponRouter, CategoricalRouter])
@pytest.mark.parametrize("first", [0, 2])  # resumed
def test_falls_geometrically_from_the_first_step_to_the_last(kind: Any, first: int) -> None:
    router, callback = kind(1, 2, 1, 3, temperature=7.0), TemperatureAnnealing(4.0, 0.125)
    module: Any = SimpleNamespace(model=SimpleNamespace(router=router))
    found = []
    for step in range(first, 6):
        trainer: Any = SimpleNamespace(global_step=step, estimated_stepping_batches=6)
        callback.on_train_batch_start(trainer, module)
        found.append(float(router.temperature))
    # Powers of two: exact but for rounding in float32.
    assert found == pytest.approx([4, 2, 1, 0.5, 0.25, 0.125][first:])
