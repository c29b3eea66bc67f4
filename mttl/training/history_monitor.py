"""A callback that keeps an array every few steps, also across a resume, and writes them."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mttl.io.files import atomic_path


class HistoryMonitor(Callback):
    """Logs statistics from time to time, and keeps the array that they were computed from.

    Args:
        path: File of the arrays.
        every_n_steps: Most steps between two records.
    """

    def __init__(self, path: Path, every_n_steps: int) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.steps: list[int] = []
        self.history: list[np.ndarray] = []

    @abstractmethod
    def arrays(self, history: np.ndarray) -> dict[str, Any]:
        """Return what the file holds besides the steps (S,)."""

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Tell whether the last record was long ago."""
        last = self.steps[-1] if self.steps else 0
        return trainer.global_step - last >= self.every_n_steps

    def record(
        self, trainer: pl.Trainer, values: np.ndarray, statistics: Mapping[str, float]
    ) -> None:
        """Keep an array of this step, log what it says, and write the file."""
        self.steps.append(trainer.global_step)
        self.history.append(values)
        for logger in trainer.loggers:
            logger.log_metrics(dict(statistics), trainer.global_step)
        if trainer.is_global_zero:
            arrays = self.arrays(np.stack(self.history))
            write_arrays(self.path, steps=np.array(self.steps), **arrays)

    def state_dict(self) -> dict[str, Any]:
        """Keep the history across a resume."""
        history = [torch.from_numpy(values) for values in self.history]
        return {"steps": list(self.steps), "history": history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the history of an earlier start."""
        self.steps = list(state_dict["steps"])
        self.history = [values.numpy() for values in state_dict["history"]]


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write a compressed ``.npz`` file, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
