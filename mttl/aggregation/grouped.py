"""Linear layers of many experts for rows sorted by expert.

One operation for all experts has one gradient of the stacked weight. Indexing the weight by expert
would give a gradient of the full size per expert.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mttl.aggregation.mix import active_dtype


def grouped_linear(
    x: Float[Tensor, "P I"],
    weight: Float[Tensor, "E O I"],
    bias: Float[Tensor, "E O"] | None,
    counts: Int[Tensor, "E"],
) -> Float[Tensor, "P O"]:
    r"""Return :math:`x_p W_{e(p)}^\top + b_{e(p)}` for rows sorted by expert.

    Gradients are exact; there is no second derivative. All tensors are cast to the dtype of ``x``,
    or to autocast's. ``counts`` are the numbers of rows of each expert.

    A GPU that supports dtype and sizes uses one kernel of PyTorch, others multiply by each expert.
    """
    x = x.to(active_dtype(x))
    weight = weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    if _has_kernel(x.device, x.dtype, *weight.shape[1:]):
        y: Tensor = _GroupedKernel.apply(x, weight, counts.cumsum(0).int())  # type: ignore
        return y if bias is None else y + bias.repeat_interleave(counts, dim=0, output_size=len(y))
    return _Segments.apply(x, weight, bias, counts.tolist())  # type: ignore[return-value]


class _Segments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        # Forward: one product per expert that has rows.
        y = x.new_empty(len(x), weight.shape[1])
        for rows, expert, out in zip(x.split(sizes), weight, y.split(sizes), strict=True):
            if len(rows):
                out.copy_(times_transpose(rows, expert))
        if bias is not None:
            for out, expert_bias in zip(y.split(sizes), bias, strict=True):
                out += expert_bias
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        sizes = ctx.sizes
        grads = grad.split(sizes)
        grad_x = grad_weight = grad_bias = None
        # Gradient of the rows: the forward pass with the weights transposed.
        if needs_x:
            grad_x = torch.empty_like(x)
            for out, rows, expert in zip(grad_x.split(sizes), grads, weight, strict=True):
                if len(rows):
                    out.copy_(times_transpose(rows, expert.t()))
        # Gradient of the weights: one tensor for all experts, 0 for those without rows.
        if needs_weight:
            grad_weight = torch.empty_like(weight)
            for out, rows, inputs in zip(grad_weight, grads, x.split(sizes), strict=True):
                write_outer(out, rows, inputs)
        if needs_bias:
            grad_bias = torch.stack([rows.sum(0) for rows in grads])
        return grad_x, grad_weight, grad_bias, None


class _GroupedKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        return _grouped_mm(x, weight.mT, ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ends = ctx.saved_tensors
        grad = grad.contiguous()  # the kernel does not support expanded gradients
        grad_x = _grouped_mm(grad, weight, ends) if ctx.needs_input_grad[0] else None
        grad_weight = _grouped_mm(grad.t(), x, ends) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None


def _grouped_mm(left: Tensor, right: Tensor, ends: Int[Tensor, "E"]) -> Tensor:
    # Older supported versions of PyTorch only have a private name.
    grouped_mm: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm  # type: ignore
    return grouped_mm(left, right, offs=ends)


def _has_kernel(device: torch.device, dtype: torch.dtype, *sizes: int) -> bool:
    """Return whether PyTorch has a kernel: bfloat16, rows of 16 bytes, Ampere or later."""
    if device.type != "cuda" or dtype != torch.bfloat16 or any(size % 8 for size in sizes):
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


# Smallest number of multiplications for oneDNN, which needs 0.4 ms for every new number of rows.
MANY_PRODUCTS = 2**23


def times_transpose(x: Float[Tensor, "M I"], weight: Float[Tensor, "O I"]) -> Float[Tensor, "M O"]:
    """Return ``x Wᵀ``, by oneDNN if it is enabled (`torch.backends.mkldnn`).

    PyTorch's float32 products on a CPU use MKL, which has half the speed of oneDNN on processors
    that are not Intel's.
    """
    if len(x) <= 4:  # faster with the weight on the left, which is read along its rows
        return (weight @ x.t()).t() if weight.is_contiguous() else x @ weight.t()
    if weight.numel() * len(x) >= MANY_PRODUCTS and _has_onednn(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return x @ weight.t()


def write_outer(
    out: Float[Tensor, "O I"], left: Float[Tensor, "M O"], right: Float[Tensor, "M I"]
) -> None:
    """Write ``leftᵀ right``, the gradient of a weight, into ``out``."""
    if 0 < len(left) <= 2:  # outer products are faster
        for i in range(len(left)):
            out.addr_(left[i], right[i], beta=int(i > 0))
    elif out.numel() * len(left) >= MANY_PRODUCTS and _has_onednn(left):
        out.copy_(torch.ops.mkldnn._linear_pointwise(left.t(), right.t(), None, "none", [], ""))
    else:
        # Adding to zeros is faster than overwriting, for which MKL has a slow path.
        out.zero_().addmm_(left.t(), right)


def _has_onednn(x: Tensor) -> bool:
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    enabled = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return enabled and hasattr(torch.ops.mkldnn, "_linear_pointwise")
