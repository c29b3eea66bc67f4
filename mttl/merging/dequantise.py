"""Unpack quantised backbones to floating point, and measure the quantisation error."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from mttl.aggregation.packed_weights import dense_weight, packed_layers


@dataclass(frozen=True)
class QuantisationError:
    """How far packed weights are from those they were made of, relative to their norm."""

    overall: float
    worst: str
    largest: float


@torch.no_grad()
def quantisation_error(backbone: nn.Module, original: nn.Module) -> QuantisationError:
    """Compare the packed weights of a backbone with the same model's in floating point."""
    squares: dict[str, tuple[float, float]] = {}
    for path, layer in packed_layers(backbone).items():
        name = path.removesuffix(".base")
        weight = original.get_parameter(f"{name}.weight")
        weight = weight.t() if _was_transposed(layer) else weight
        found = dense_weight(layer)
        lost = (found.float() - weight.float()).square().sum()
        squares[name] = float(lost), float(weight.float().square().sum())
    errors = {name: (lost / max(whole, 1e-30)) ** 0.5 for name, (lost, whole) in squares.items()}
    worst = max(errors, key=errors.__getitem__)
    lost, whole = (sum(column) for column in zip(*squares.values(), strict=True))
    return QuantisationError((lost / whole) ** 0.5, worst, errors[worst])


def dequantise(backbone: nn.Module) -> int:
    """Replace packed layers by layers in floating point, in place; return their number."""
    layers = packed_layers(backbone)
    for path, layer in layers.items():
        backbone.set_submodule(path, dense_layer(layer, dense_weight(layer), layer.bias))  # type: ignore[arg-type]
    # Also where folding has put plain layers in the places of all of them.
    quantiser: Any = getattr(backbone, "hf_quantizer", None)
    if quantiser is not None:
        quantiser.remove_quantization_config(backbone)
        # What was loaded packed would be packed again, with its names for the parts, when saved.
        conversions: Any = getattr(backbone, "_weight_conversions", None) or []
        kept = [one for one in conversions if not _unpacks(one)]
        setattr(backbone, "_weight_conversions", kept)  # noqa: B010
    return len(layers)


def dense_layer(
    layer: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None
) -> nn.Linear | Conv1D:
    """Return a layer of the class that stood in the place of a packed one, with other tensors."""
    if _was_transposed(layer):
        made: nn.Linear | Conv1D = Conv1D(weight.shape[0], weight.shape[1])
        weight = weight.t()
    else:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made.train(layer.training)


def _unpacks(conversion: Any) -> bool:
    """Return whether a conversion of names in files builds packed weights."""
    operations = getattr(conversion, "operations", [])
    return any(type(one).__name__.endswith("Deserialize") for one in operations)


def _was_transposed(layer: nn.Module) -> bool:
    """Return whether bitsandbytes took the layer from a class that keeps weights as (I, O)."""
    return getattr(layer, "source_cls", None) is Conv1D
