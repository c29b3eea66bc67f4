"""Precision plugins for code without Lightning's trainer: training loops and answers."""

from contextlib import AbstractContextManager

import torch
from lightning_fabric.plugins import MixedPrecision, Precision
from torch import nn

PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def precision_plugin(precision: str, device: str) -> Precision:
    """Return the plugin of one of `PRECISIONS`, for scaling losses and optimizer steps."""
    if precision == "32-true":
        return Precision()
    return MixedPrecision(precision, device)  # type: ignore[arg-type]


def answering_precision(precision: str, model: nn.Module) -> Precision:
    """Return the plugin for answering with the precision of evaluation in training.

    For models trained with half or double-precision weights it is single precision, in which saved
    weights are loaded. The model may be moved to another device.
    """
    if precision.endswith("-mixed"):
        return _MixedAnswers(torch.bfloat16 if precision.startswith("bf16") else torch.half, model)
    return Precision()


class _MixedAnswers(Precision):
    def __init__(self, dtype: torch.dtype, model: nn.Module) -> None:
        self.dtype, self.model = dtype, model

    def forward_context(self) -> AbstractContextManager:
        return torch.autocast(next(self.model.parameters()).device.type, self.dtype)
