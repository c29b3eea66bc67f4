"""A callback that records the loads of experts and the share of dropped tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mttl.analysis.tokens.token_statistics import load_entropy
from mttl.runtime.processes import gathered, rank
from mttl.training.history_monitor import HistoryMonitor
from mttl.training.token_balance import LOADS


class TokenMonitor(HistoryMonitor):
    """Logs how even the loads of experts are and how many tokens were dropped, and keeps both.

    Writes ``token_history.npz`` with ``steps (S,)``, ``load (S, M, E)``: the share of a layer's
    pairs that chose each expert since the record before, ``dropped (S, M)``: the share that found
    no room, and ``layers``.

    Args:
        folder: Where to write.
        layers: Names of the M layers that route tokens.
        every_n_steps: Steps between two records.
    """

    def __init__(self, folder: Path, layers: tuple[str, ...], every_n_steps: int = 50) -> None:
        super().__init__(folder / "token_history.npz", every_n_steps)
        self.layers = layers
        self.loads: Tensor | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        """Add the loads of the batch, and record them from time to time."""
        found = outputs[LOADS]
        # After a resume the sum lies on the CPU.
        self.loads = found if self.loads is None else self.loads.to(found.device) + found
        if self.is_due(trainer):
            self._record(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the last loads."""
        if self.loads is not None:
            self._record(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Keep the history across a resume, and what all processes have counted since."""
        loads = None
        if self.loads is not None:
            loads = torch.stack(gathered(self.loads.cpu())).sum(0)
        return {**super().state_dict(), "loads": loads}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the history of an earlier start."""
        super().load_state_dict(state_dict)
        self.loads = state_dict["loads"]
        if self.loads is not None and rank() > 0:  # the first process goes on with all of them
            self.loads = torch.zeros_like(self.loads)

    def arrays(self, history: np.ndarray) -> dict[str, Any]:
        """Return loads and drops with the names of the layers."""
        layers = np.array(self.layers)
        return {"load": history[..., :-1], "dropped": history[..., -1], "layers": layers}

    def _record(self, trainer: pl.Trainer) -> None:
        # Reducing is in place, and others hold the loads of the batch too.
        mine = self.loads.clone()  # type: ignore[union-attr]
        loads = trainer.strategy.reduce(mine, reduce_op="sum").cpu().numpy()  # type: ignore[union-attr]
        self.loads = None
        shares = load_shares(loads)
        statistics = {
            "tokens/load_entropy": float(load_entropy(shares[:, :-1]).mean()),
            "tokens/largest_load": float(shares[:, :-1].max(1).mean()),
            "tokens/dropped": float(shares[:, -1].mean()),
        }
        self.record(trainer, shares.astype(np.float32), statistics)


def load_shares(loads: np.ndarray) -> Float[np.ndarray, "M E+1"]:
    """Return the counts of `mttl.training.token_balance.token_loads` as shares of all pairs."""
    return loads / np.maximum(loads[:, :-1].sum(1, keepdims=True), 1)
