"""How far a gate is open at each token: what `GatedInventory` multiplies changes by."""

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.aggregation.products import active_dtype


def open_gates(
    x: Float[Tensor, "B L I"], weight: Float[Tensor, "B I"], bias: Float[Tensor, "B 1"]
) -> Float[Tensor, "B L 1"]:
    """Return how far the gate of each example is open at its tokens, from 0 to 1."""
    dtype = active_dtype(x)
    weight, bias = weight.to(dtype).unsqueeze(2), bias.to(dtype).unsqueeze(1)
    return torch.baddbmm(bias, x.to(dtype), weight).sigmoid()
