"""Callbacks that log and print how a training of policies goes."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console

from mttl.babyai.policy_module import ImitationModule
from mttl.babyai.rl.learning_curve import ROUNDING, EpisodeLog
from mttl.config.babyai_schema import Rl
from mttl.runtime.progress_bar import SECONDS_BETWEEN_LINES

ROLLOUTS = 10  # over which a success rate is averaged


class LineMonitor(Callback):
    """Prints a line after an epoch if the last one was long ago, and after the last epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last_line = 0.0

    def print_if_due(self, trainer: pl.Trainer, line: str) -> bool:
        """Return whether the line was printed."""
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        due = time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        if not trainer.is_global_zero or not (due or last):
            return False
        self._last_line = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True)
        return True


class ImitationMonitor(LineMonitor):
    """Prints how often policies act as demonstrated."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the line."""
        assert isinstance(pl_module, ImitationModule)
        means = pl_module.means()
        rates = {level: float(means[f"accuracy/{level}"]) for level in pl_module.levels}
        line = f"pass {trainer.current_epoch + 1}; actions as demonstrated (%): "
        self.print_if_due(trainer, line + percentages(rates))


class EpisodeMonitor(LineMonitor):
    """Logs counts and success rates after each rollout, and ends the training if asked to.

    A level is solved when the mean over `ROLLOUTS` reached the rate: one lucky rollout proves
    nothing.
    """

    def __init__(self, log: EpisodeLog, rl: Rl, console: Console) -> None:
        super().__init__(console)
        self.counts, self.rl = log, rl
        self._rates: list[list[float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log a row, print it if the last line was long ago, and stop if asked to."""
        row = self.row(trainer)
        known = {name: value for name, value in row.items() if not math.isnan(value)}
        for logger in trainer.loggers:
            logger.log_metrics(known, trainer.global_step)
        rates = {level: row[f"success/{level}"] for level in self.counts.levels}
        self._rates = [*self._rates, [*rates.values()]][-ROLLOUTS:]
        lately = np.array(self._rates).mean(0)
        solved = len(self._rates) == ROLLOUTS and all(lately >= self.rl.success_rate - ROUNDING)
        trainer.should_stop |= self.rl.stop_when_solved and solved
        counts = f"{row['frames']:,.0f} frames, {row['episodes']:,.0f} episodes"
        printed = self.print_if_due(trainer, f"{counts}; success: {percentages(rates)}")
        if printed and trainer.should_stop and solved:
            self.console.print(
                f"Every level succeeds in {self.rl.success_rate:.0%} of its last "
                f"{self.counts.window} episodes: training ends."
            )

    def row(self, trainer: pl.Trainer) -> dict[str, float]:
        """Return the row of all processes: counts are added up, rates averaged."""
        row = self.counts.row()
        if trainer.world_size > 1:
            strategy = trainer.strategy
            values = torch.tensor(list(row.values()), dtype=torch.float64)
            values = strategy.reduce(values.to(strategy.root_device), reduce_op="mean")
            row = dict(zip(row, torch.as_tensor(values).tolist(), strict=True))
            for count in ("episodes", "frames"):
                row[count] *= trainer.world_size
        return row

    def state_dict(self) -> dict[str, Any]:
        """Keep the last rates across a resume."""
        return {"rates": self._rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the last rates."""
        self._rates = state_dict["rates"]


def percentages(rates: Mapping[str, float]) -> str:
    """Return rates in one line; a dash if too few episodes have ended."""
    shown = {level: "–" if math.isnan(x) else f"{100 * x:.0f}" for level, x in rates.items()}
    return "  ".join(f"{level} {rate}" for level, rate in shown.items())
