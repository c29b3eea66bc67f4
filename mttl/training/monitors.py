"""Callbacks that record routing weights and expert loads, also across a resume."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float, UInt8
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mttl.analysis.statistics import active_cells, discreteness, usage
from mttl.analysis.token_record import load_entropy
from mttl.checkpoints.whole_tensors import whole_parameters
from mttl.io.files import atomic_path
from mttl.routing.task.task_router import TaskRouter
from mttl.runtime.processes import gathered, rank
from mttl.training.loggers import experiment_loggers
from mttl.training.token_balance import LOADS

CELL, GAP = 8, 4  # pixels
COLOR = np.array([8, 48, 107])  # colour of the largest weight; 0 is white


class HistoryMonitor(Callback):
    """Logs statistics at intervals, and keeps the underlying arrays."""

    def __init__(self, path: Path, every_n_steps: int) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.steps: list[int] = []
        self.history: list[dict[str, Tensor]] = []

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Return whether the recording interval has passed."""
        last = self.steps[-1] if self.steps else 0
        return trainer.global_step - last >= self.every_n_steps

    def record(
        self,
        trainer: pl.Trainer,
        statistics: Mapping[str, float],
        names: Mapping[str, Sequence[str]],
        **values: np.ndarray,
    ) -> None:
        """Log statistics, store this step's arrays, and write all arrays with ``names``."""
        self.steps.append(trainer.global_step)
        self.history.append({name: torch.from_numpy(value) for name, value in values.items()})
        for logger in trainer.loggers:
            logger.log_metrics(dict(statistics), trainer.global_step)
        if trainer.is_global_zero:
            arrays = {k: torch.stack([one[k] for one in self.history]).numpy() for k in values}
            words = {name: np.array(listed) for name, listed in names.items()}
            write_arrays(self.path, steps=np.array(self.steps), **arrays, **words)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "history": list(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.history = list(state_dict["steps"]), list(state_dict["history"])


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write a compressed ``.npz`` file atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


class RoutingMonitor(HistoryMonitor):
    """Logs routing statistics, and keeps the history of routing weights.

    Writes ``routing_history.npz`` with ``steps (S,)``, ``weights (S, G, T, K)``, ``groups`` and
    ``tasks``, after each validation and every ``every_n_steps`` steps.
    """

    def __init__(
        self,
        folder: Path,
        groups: tuple[str, ...],
        tasks: tuple[str, ...],
        every_n_steps: int = 500,
    ) -> None:
        super().__init__(folder / "routing_history.npz", every_n_steps)
        self.groups = groups
        self.tasks = tasks

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.steps:  # otherwise the run is resumed
            self._record(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self.is_due(trainer):
            self._record(trainer, pl_module)

    def _record(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the routing, at most once per step."""
        router: TaskRouter = pl_module.model.router  # type: ignore[assignment, union-attr]
        if self.steps and self.steps[-1] == trainer.global_step:
            return
        with torch.no_grad(), whole_parameters(router):
            statistics = routing_statistics(router.probabilities(), self.groups)
            weights = as_rows(router.matrix())
        names = {"groups": head_names(self.groups, len(weights)), "tasks": self.tasks}
        self.record(trainer, statistics, names, weights=weights.astype(np.float16))
        for logger in experiment_loggers(trainer):
            logger.log_image("routing", routing_image(weights), trainer.global_step)

    on_validation_end = on_train_end = _record


def as_rows(routing: Float[torch.Tensor, "G T H K"]) -> Float[np.ndarray, "GH T K"]:
    """Return weights or probabilities as an array, with each head as a group."""
    return routing.detach().transpose(1, 2).flatten(0, 1).float().cpu().numpy()


def head_names(groups: tuple[str, ...], n_rows: int) -> list[str]:
    """Return the names of groups and heads, in the order of `as_rows`."""
    n_heads = n_rows // len(groups)
    if n_heads == 1:
        return list(groups)
    return [f"{group}/head {head}" for group in groups for head in range(n_heads)]


def routing_statistics(probabilities: torch.Tensor, groups: tuple[str, ...]) -> dict[str, float]:
    """Return discreteness, fraction of active cells and usage, overall and by stack."""
    probabilities = probabilities.cpu()
    values = {}
    for stack in ("", "encoder", "decoder"):
        chosen = [i for i, name in enumerate(groups) if not stack or stack in name.split(".")]
        if not chosen or (stack and len(chosen) == len(groups)):
            continue
        part = probabilities[chosen]
        name = f"routing/{stack}/" if stack else "routing/"
        values[f"{name}discreteness"] = discreteness(part.clamp(0, 1))
        values[f"{name}active_cells"] = active_cells(part)
        values[f"{name}usage"] = usage(part.clamp_min(0))
    return values


def routing_image(weights: Float[np.ndarray, "G T K"]) -> UInt8[np.ndarray, "H W 3"]:
    """Return an image of tasks by skills, groups side by side; large weights are dark."""
    shares = np.clip(weights / max(float(weights.max()), 1e-12), 0, 1)
    cells = shares.repeat(CELL, axis=1).repeat(CELL, axis=2)
    gap = np.zeros((cells.shape[1], GAP))
    columns = [part for group in cells for part in (gap, group)][1:]
    dark = np.concatenate(columns, axis=1)[..., None]
    return (255 - dark * (255 - COLOR)).astype(np.uint8)


class TokenMonitor(HistoryMonitor):
    """Logs the balance of expert loads and the fraction of dropped tokens.

    Writes ``token_history.npz`` with ``steps (S,)``, ``load (S, M, E)`` (fractions of a layer's
    choices per expert since the last record), ``dropped (S, M)`` (fractions beyond capacity), and
    the names of the M ``layers``.
    """

    def __init__(self, folder: Path, layers: tuple[str, ...], every_n_steps: int = 50) -> None:
        super().__init__(folder / "token_history.npz", every_n_steps)
        self.layers = layers
        self.loads: Tensor | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        found = outputs[LOADS]
        # After a resume the sum is on the CPU.
        self.loads = found if self.loads is None else self.loads.to(found.device) + found
        if self.is_due(trainer):
            self._record(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._record(trainer)

    def _record(self, trainer: pl.Trainer) -> None:
        if self.loads is None:
            return
        # Reduction is in place, and other callbacks use the batch's loads.
        reduced: Any = trainer.strategy.reduce(self.loads.clone(), reduce_op="sum")
        loads, self.loads = reduced.cpu().numpy(), None
        shares = loads / np.maximum(loads[:, :-1].sum(1, keepdims=True), 1)
        statistics = {
            "tokens/load_entropy": float(load_entropy(shares[:, :-1]).mean()),
            "tokens/largest_load": float(shares[:, :-1].max(1).mean()),
            "tokens/dropped": float(shares[:, -1].mean()),
        }
        found = shares.astype(np.float32)
        layers = {"layers": self.layers}
        self.record(trainer, statistics, layers, load=found[:, :-1], dropped=found[:, -1])

    def state_dict(self) -> dict[str, Any]:
        """Return the history, and the loads counted by all processes since the last record."""
        loads = None
        if self.loads is not None:
            loads = torch.stack(gathered(self.loads.cpu())).sum(0)
        return {**super().state_dict(), "loads": loads}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.loads = state_dict["loads"]
        if self.loads is not None and rank() > 0:  # the first process continues with the total
            self.loads = torch.zeros_like(self.loads)
