"""One autograd operation for a linear layer with a low-rank change per example.

For example b, ``y_b = x_b Wᵀ + bias + (x_b A_b) B_bᵀ``. Written with ordinary operations this
builds three tensors of the output's or input's size on the way (the change, its sum with the base
output, and the second gradient of the input). Here both products add into what the base layer has
already computed, forward and backward.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def low_rank_linear(
    x: Float[Tensor, "B L I"],
    weight: Float[Tensor, "O I"],
    bias: Float[Tensor, "O"] | None,
    down: Float[Tensor, "B I r"],
    up: Float[Tensor, "B O r"],
) -> Float[Tensor, "B L O"]:
    """Return ``x Wᵀ + bias + (x A) Bᵀ`` with one pair of factors per example.

    All arguments must have one dtype. Gradients are exact for every argument and are computed only
    for those that need one; there is no second derivative.
    """
    if not torch.is_grad_enabled():
        return _forward(x, weight, bias, down, up)[0]  # applying a function has a cost per token
    return _LowRankLinear.apply(x, weight, bias, down, up)  # type: ignore[return-value]


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    # Forward: the base layer, then (x A) Bᵀ added into its output in place.
    y = torch.nn.functional.linear(x, weight, bias)
    hidden = torch.bmm(x, down)
    return y.baddbmm_(hidden, up.mT), hidden


class _LowRankLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
    ) -> Tensor:
        y, hidden = _forward(x, weight, bias, down, up)
        ctx.save_for_backward(x, weight, down, up, hidden)
        ctx.has_bias = bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up, hidden = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_down, needs_up = ctx.needs_input_grad
        grad_x = grad_weight = grad_bias = grad_down = grad_up = None
        # Gradient of x A, from which those of x and A follow.
        grad_hidden = torch.bmm(grad, up)
        if needs_x:
            grad_x = torch.matmul(grad, weight)
            grad_x.baddbmm_(grad_hidden, down.mT)
        # Gradients of the factors, laid out as the factors are: the transposed products can be
        # faster by themselves, but autograd would copy what they return.
        if needs_down:
            grad_down = torch.bmm(x.mT, grad_hidden)
        if needs_up:
            grad_up = torch.bmm(grad.mT, hidden)
        if needs_weight:
            grad_weight = grad.flatten(0, 1).t() @ x.flatten(0, 1)
        if needs_bias and ctx.has_bias:
            grad_bias = grad.sum((0, 1))
        return grad_x, grad_weight, grad_bias, grad_down, grad_up
