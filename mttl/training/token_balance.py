"""Expert loads during training, and loss-free load balancing by biases."""

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mttl.checkpoints.model_tensors import Model
from mttl.routing.token.balance import BiasBalance
from mttl.routing.token.masks import TokenRecord

LOADS = "token_loads"


def token_loads(model: Model, records: Sequence[TokenRecord]) -> Int[Tensor, "M E+1"]:
    """Return the number of choices per layer and expert, with dropped ones in the last column.

    Rows follow `SkilledModel.token_layers`; layers with fewer experts are padded with zeros.
    """
    layers = model.token_layers()
    rows = {name: number for number, name in enumerate(layers)}
    n_experts = max(layer.router.n_experts for layer in layers.values())
    device = next(model.parameters()).device
    loads = torch.zeros(len(rows), n_experts + 1, dtype=torch.long, device=device)
    for record in records:
        row = loads[rows[record.layer]]
        row[: record.n_experts] += record.load()
        row[-1] += record.dropped()
    return loads


def trained_biases(model: Model) -> list[BiasBalance | None]:
    """Return each layer's balancing bias, or None if it has none or its router is frozen."""
    routers = [layer.router for layer in model.token_layers().values()]
    return [r.bias if any(p.requires_grad for p in r.parameters()) else None for r in routers]


def adjust_biases(model: Model, loads: Int[Tensor, "M E+1"]) -> None:
    """Update the balancing biases of trained routers by the loads of a whole step."""
    for bias, load in zip(trained_biases(model), loads, strict=True):
        if bias is not None:
            bias.adjust(load[: len(bias.value)])


class BiasBalancing(Callback):
    """Updates the biases of token routers after each optimizer step.

    Loads are summed over the step's batches and all processes.
    """

    def __init__(self) -> None:
        self.loads: Tensor | None = None
        self.step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        # A copy, because reduction is in place and other callbacks use the loads.
        loads = outputs[LOADS].clone() if self.loads is None else self.loads + outputs[LOADS]
        self.loads = loads
        if trainer.global_step > self.step:
            total = trainer.strategy.reduce(loads, reduce_op="sum")
            adjust_biases(pl_module.model, total)  # type: ignore[arg-type]
            self.loads, self.step = None, trainer.global_step
