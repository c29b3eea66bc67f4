"""A callback that records the routing weights and how discrete, dense and even they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float, UInt8

from mttl.analysis.statistics import active_cells, discreteness, usage
from mttl.checkpoints.whole_tensors import whole_parameters
from mttl.routing.task.task_router import TaskRouter
from mttl.training.history_monitor import HistoryMonitor
from mttl.training.loggers import experiment_loggers


class RoutingMonitor(HistoryMonitor):
    """Logs how discrete, dense and evenly used the routing is, and keeps its history.

    Writes ``routing_history.npz`` with ``steps (S,)``, ``weights (S, G, T, K)`` and ``groups``.

    Args:
        folder: Where to write.
        groups: Names of the routed groups.
        tasks: Names of the tasks in the order of their ids.
        every_n_steps: Most steps between two records; each validation is one too.
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
        """Keep the routing that training starts from."""
        if not self.steps:  # else the run is resumed
            self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        """Keep the routing from time to time where nothing is validated."""
        if self.is_due(trainer):
            self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the routing at each validation."""
        if not trainer.sanity_checking:
            self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the final routing."""
        self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def arrays(self, history: np.ndarray) -> dict[str, Any]:
        """Return the weights with the names of their groups and tasks."""
        groups = head_names(self.groups, history.shape[1])
        return {"weights": history, "groups": np.array(groups), "tasks": np.array(self.tasks)}

    def _record(self, trainer: pl.Trainer, router: TaskRouter) -> None:
        if self.steps and self.steps[-1] == trainer.global_step:
            return
        with torch.no_grad(), whole_parameters(router):
            statistics = routing_statistics(router.probabilities(), self.groups)
            weights = routing_weights(router)
        self.record(trainer, weights.astype(np.float16), statistics)
        for logger in experiment_loggers(trainer):
            logger.log_image("routing", routing_image(weights), trainer.global_step)


def routing_weights(router: TaskRouter) -> np.ndarray:
    """Return the routing matrix as an array (G · H, T, K): every head is a group of its own."""
    return as_rows(router.matrix())


def as_rows(routing: Float[torch.Tensor, "G T H K"]) -> Float[np.ndarray, "GH T K"]:
    """Return weights or probabilities as an array, every head a group of its own."""
    return routing.detach().transpose(1, 2).flatten(0, 1).float().cpu().numpy()


def head_names(groups: tuple[str, ...], n_rows: int) -> list[str]:
    """Return the names of groups and heads, in the order of `routing_weights`."""
    n_heads = n_rows // len(groups)
    if n_heads == 1:
        return list(groups)
    return [f"{group}/head {head}" for group in groups for head in range(n_heads)]


def routing_statistics(probabilities: torch.Tensor, groups: tuple[str, ...]) -> dict[str, float]:
    """Return discreteness, share of active cells and usage, also of encoder and decoder apart."""
    probabilities = probabilities.cpu()
    values = {}
    for stack in ("", "encoder", "decoder"):
        chosen = [
            index for index, name in enumerate(groups) if not stack or stack in name.split(".")
        ]
        if not chosen or (stack and len(chosen) == len(groups)):
            continue
        part = probabilities[chosen]
        name = f"routing/{stack}/" if stack else "routing/"
        values[f"{name}discreteness"] = discreteness(part.clamp(0, 1))
        values[f"{name}active_cells"] = active_cells(part)
        values[f"{name}usage"] = usage(part.clamp_min(0))
    return values


CELL, GAP = 8, 4  # pixels
COLOR = np.array([8, 48, 107])  # of the largest weight; no weight is white


def routing_image(weights: Float[np.ndarray, "G T K"]) -> UInt8[np.ndarray, "H W 3"]:
    """Return tasks by skills, the groups beside one another.

    Args:
        weights: Of groups, tasks and skills; a group is as dark as its weights are large beside the
            largest of all.
    """
    shares = np.clip(weights / max(float(weights.max()), 1e-12), 0, 1)
    cells = shares.repeat(CELL, axis=1).repeat(CELL, axis=2)
    gap = np.zeros((cells.shape[1], GAP))
    columns = [part for group in cells for part in (gap, group)][1:]
    dark = np.concatenate(columns, axis=1)[..., None]
    return (255 - dark * (255 - COLOR)).astype(np.uint8)
