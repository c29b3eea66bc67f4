"""A callback that writes down how fast a run trains: for `trainer.callbacks` of a configuration."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

UNTIMED = 3  # steps: the first ones allocate memory and choose kernels


class StepClock(Callback):
    """Writes the median seconds of a step, rows per second, the peak of memory and the last loss.

    Args:
        path: The JSON file, written by the first process.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._ends: list[float] = []
        self._rows: list[int] = []
        self._loss = float("nan")

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Note when a step ended, once the device is done with it."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        self._ends.append(time.perf_counter())
        self._rows.append(len(batch["task_ids"]) if isinstance(batch, Mapping) else 0)
        self._loss = float(outputs["loss"] if isinstance(outputs, dict) else outputs)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the figures."""
        gaps = [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]
        gaps, rows = gaps[UNTIMED:] or gaps, self._rows[1:][UNTIMED:] or self._rows[1:]
        on_gpu = pl_module.device.type == "cuda"
        figures = {
            "seconds_per_step": median(gaps) if gaps else None,
            "rows_per_second": trainer.world_size * sum(rows) / sum(gaps) if gaps else None,
            "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
            "loss": self._loss,
            "n_processes": trainer.world_size,
        }
        if trainer.is_global_zero:
            self.path.write_text(json.dumps(figures), encoding="utf-8")
