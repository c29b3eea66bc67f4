"""Watches the router while it learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mttl.analysis.statistics import discreteness, sparsity, usage
from mttl.files import atomic_path
from mttl.routing.task.task_router import TaskRouter


class RoutingMonitor(Callback):
    """Logs how discrete, sparse and evenly used the routing is, and keeps its history.

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
        self.folder = folder
        self.groups = groups
        self.tasks = tasks
        self.every_n_steps = every_n_steps
        self.steps: list[int] = []
        self.history: list[np.ndarray] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the routing that training starts from."""
        if not self.steps:  # else the run is resumed
            self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keep the routing from time to time where nothing is validated."""
        if trainer.global_step - self.steps[-1] >= self.every_n_steps:
            self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the routing at each validation."""
        if not trainer.sanity_checking:
            self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the final routing."""
        self._record(trainer, pl_module.model.router)  # type: ignore[union-attr]

    def state_dict(self) -> dict[str, Any]:
        """Keep the history across a resume."""
        return {
            "steps": list(self.steps),
            "history": [torch.from_numpy(weights) for weights in self.history],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the history of an earlier start."""
        self.steps = list(state_dict["steps"])
        self.history = [weights.numpy() for weights in state_dict["history"]]

    def _record(self, trainer: pl.Trainer, router: TaskRouter) -> None:
        if self.steps and self.steps[-1] == trainer.global_step:
            return
        with torch.no_grad():
            probabilities = router.probabilities()
            self.steps.append(trainer.global_step)
            self.history.append(routing_weights(router).astype(np.float16))
        for trainer_logger in trainer.loggers:
            trainer_logger.log_metrics(
                routing_statistics(probabilities, self.groups), trainer.global_step
            )
        if trainer.is_global_zero:
            self._write()

    def _write(self) -> None:
        with atomic_path(self.folder / "routing_history.npz") as path, path.open("wb") as file:
            np.savez_compressed(
                file,
                steps=np.array(self.steps),
                weights=np.stack(self.history),
                groups=np.array(head_names(self.groups, self.history[-1].shape[0])),
                tasks=np.array(self.tasks),
            )


def routing_weights(router: TaskRouter) -> np.ndarray:
    """Return the routing matrix as an array (G · H, T, K): every head is a group of its own."""
    with torch.no_grad():
        return router.matrix().transpose(1, 2).flatten(0, 1).float().cpu().numpy()


def head_names(groups: tuple[str, ...], n_rows: int) -> list[str]:
    """Return the names of groups and heads, in the order of `routing_weights`."""
    n_heads = n_rows // len(groups)
    if n_heads == 1:
        return list(groups)
    return [f"{group}/head {head}" for group in groups for head in range(n_heads)]


def routing_statistics(probabilities: torch.Tensor, groups: tuple[str, ...]) -> dict[str, float]:
    """Return discreteness, sparsity and usage, also of encoder and decoder apart."""
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
        values[f"{name}sparsity"] = sparsity(part)
        values[f"{name}usage"] = usage(part.clamp_min(0))
    return values
