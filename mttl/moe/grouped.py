"""Linear layers of many experts over rows sorted by expert."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def grouped_linear(
    x: Float[Tensor, "P I"],
    weight: Float[Tensor, "E O I"],
    bias: Float[Tensor, "E O"] | None,
    counts: Int[Tensor, "E"],
) -> Float[Tensor, "P O"]:
    """Return ``x W_eᵀ + b_e`` with the weight of each row's expert.

    Args:
        x: Rows sorted by expert.
        weight: Of all experts.
        bias: Of all experts, or none.
        counts: Rows of each expert.
    """
    # Unbound once: indexing a stacked weight would make autograd write zeros for all experts.
    weights = weight.to(x.dtype).unbind(0)
    parts = zip(x.split(counts.tolist()), weights, strict=True)
    y = torch.cat([rows @ expert.t() for rows, expert in parts])
    if bias is not None:
        y = y + bias.to(y.dtype).repeat_interleave(counts, dim=0)
    return y
