from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader

from helpers.trainer import quiet_trainer
from mttl.routing import CategoricalRouter, PolytroponRouter
from mttl.training.callbacks import TemperatureAnnealing

Router = type[PolytroponRouter] | type[CategoricalRouter]


class Model(nn.Module):
    def __init__(self, router: Router) -> None:
        super().__init__()
        self.router = router(1, 2, 1, 3, temperature=7.0)


class Recorder(pl.LightningModule):
    """Trains a router, and writes down the temperature at which it draws."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.model = Model(router)
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(float(self.model.router.temperature))
        return self.model.router(torch.tensor([0])).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SaveAt(Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def temperatures(
    start: float,
    end: float,
    max_steps: int,
    *callbacks: Callback,
    router: Router = PolytroponRouter,
    ckpt_path: Path | None = None,
    **settings: Any,
) -> list[float]:
    recorder = Recorder(router)
    own = [TemperatureAnnealing(start, end), *callbacks]
    trainer = quiet_trainer(max_steps=max_steps, callbacks=own, **settings)
    loader = DataLoader([torch.zeros(1)] * 4)  # type: ignore[arg-type]
    trainer.fit(recorder, loader, ckpt_path=ckpt_path, weights_only=False)
    return recorder.seen


@pytest.mark.parametrize("router", [PolytroponRouter, CategoricalRouter])
def test_falls_geometrically_from_the_first_step_to_the_last(router: Router) -> None:
    # Over two epochs, and powers of two: exact but for rounding in float32.
    assert temperatures(4.0, 0.125, 6, router=router) == pytest.approx([4, 2, 1, 0.5, 0.25, 0.125])


def test_a_resumed_run_continues_the_path(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    temperatures(4.0, 0.125, 6, SaveAt(2, path))
    found = temperatures(4.0, 0.125, 6, ckpt_path=path)
    assert found == pytest.approx([1, 0.5, 0.25, 0.125])
