"""A callback that prints how often policies act as demonstrated."""

import time

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from rich.console import Console

from mttl.babyai.imitation_module import ImitationModule
from mttl.runtime.progress_bar import SECONDS_BETWEEN_LINES


class ImitationMonitor(Callback):
    """Prints a line after a pass if the last one was long ago, and after the last pass."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last_line = 0.0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the line."""
        assert isinstance(pl_module, ImitationModule)
        n_passes = trainer.current_epoch + 1
        last = trainer.should_stop or n_passes == trainer.max_epochs
        due = time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        if trainer.is_global_zero and (due or last):
            self._last_line = time.monotonic()
            means = {name: float(value) for name, value in pl_module.means().items()}
            line = accuracy_line(n_passes, means, pl_module.levels)
            self.console.print(line, highlight=False, soft_wrap=True)


def accuracy_line(n_passes: int, means: dict[str, float], levels: tuple[str, ...]) -> str:
    """Return the accuracies (%) in one line."""
    shown = "  ".join(f"{level} {100 * means[f'accuracy/{level}']:.0f}" for level in levels)
    return f"pass {n_passes}; actions as demonstrated (%): {shown}"
