"""Detection and unpacking of weights that bitsandbytes or torchao quantised.

A library is imported only for its own weights.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BITSANDBYTES = ("Params4bit", "Int8Params")


def is_packed(weight: Any) -> bool:
    """Return whether a tensor is a weight of one of the libraries."""
    kind = type(weight)
    packed = kind.__name__ in BITSANDBYTES or kind.__module__.startswith("torchao.")
    return packed or hasattr(weight, "quant_state")  # a part of a sharded weight


def packed_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers with a packed weight by path."""
    return {
        path: module
        for path, module in model.named_modules()
        if is_packed(module._parameters.get("weight"))
    }


def dense_weight(layer: nn.Module) -> Float[Tensor, "O I"]:
    """Return the weight of a linear layer in floating point, unpacked if necessary."""
    weight: Any = layer.weight
    # For a weight that was gathered from shards, only the layer has the scales.
    state: Any = getattr(weight, "quant_state", None) or getattr(layer, "quant_state", None)
    if state is None and not is_packed(weight):
        return weight
    kind = type(weight)
    if state is not None:
        if getattr(state, "packing_format_for_cpu", False):
            raise ValueError(
                "bitsandbytes repacked a 4-bit weight for inference, with rounded scales; load the "
                "model again and call keep_format (mttl.aggregation.packed_weights) on it"
            )
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(weight.data, state)
    if kind.__name__ == "Int8Params":
        from bitsandbytes.functional import int8_vectorwise_dequant

        # The first pass moves the scales from the weight to the layer's state.
        scales: Any = weight.SCB if weight.SCB is not None else layer.state.SCB  # type: ignore[union-attr]
        return int8_vectorwise_dequant(weight.data, scales)
    if kind.dequantize is not Tensor.dequantize:
        return weight.dequantize()
    # Only its kernel can read the weight: multiply it by unit vectors.
    units = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    return nn.functional.linear(units, weight).t()


def is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer's weight has the shape (I, O), as GPT-2's have."""
    return type(layer).__name__ == "Conv1D"


def stored(weight: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the unpacked shape of a weight, and values that identify it.

    These are the scales of its blocks, if there are any. As largest magnitudes they depend neither
    on the machine that packs the weight nor on the layout, and they are finite if the weight is.
    """
    kept: Any = weight
    if not is_packed(weight):
        return tuple(weight.shape), weight
    if state := getattr(weight, "quant_state", None):
        return tuple(state.shape), state.absmax
    if type(weight).__name__ in BITSANDBYTES:
        return tuple(weight.shape), weight.data
    scales = getattr(kept, "scale", getattr(kept, "scale_and_zero", None))
    return tuple(weight.shape), kept.qdata if scales is None else scales


def parts(weight: Tensor) -> list[Tensor]:
    """Return the tensors of a packed weight."""
    kept: Any = weight
    if type(weight).__name__ == "Params4bit":
        return [weight.data, kept.quant_state.absmax]
    if type(weight).__name__ == "Int8Params":
        return [weight.data]
    return [getattr(kept, name) for name in kept.__tensor_flatten__()[0]]


def keep_format(model: nn.Module) -> None:
    """Prevent changes of packed weights in evaluation, and let gradients pass through all of them.

    On processors with bfloat16, bitsandbytes repacks 4-bit weights in the first evaluation, with
    rounded scales. Weights that only a kernel can read block gradients without an error.
    """
    for path, layer in packed_layers(model).items():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            setattr(layer, "support_avx512bf16_for_cpu", False)  # noqa: B010
        weight: Any = layer.weight
        bitsandbytes = type(weight).__name__ in BITSANDBYTES
        if not bitsandbytes and type(weight).dequantize is Tensor.dequantize:
            model.set_submodule(path, KernelLinear(layer))


class KernelLinear(nn.Linear):
    """A linear layer with a gradient for its input, whose weight only a kernel can read."""

    def __init__(self, layer: nn.Module) -> None:
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, nn.Parameter)
        super().__init__(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        self.weight = weight
        self.bias = bias  # type: ignore[assignment]

    def forward(self, input: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        """Return the layer's output."""
        return _KernelProduct.apply(input, self)  # type: ignore[return-value]


class _KernelProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: KernelLinear) -> Tensor:
        ctx.layer = layer
        bias: Any = layer.bias
        # The kernel supports only the dtype of the scales.
        return nn.functional.linear(x.to(layer.weight.dtype), layer.weight, bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ dense_weight(ctx.layer).to(grad.dtype), None


def is_foreign(module: nn.Module) -> bool:
    """Return whether a module has integer matrices, as layers of GPTQ and AWQ have."""
    if isinstance(module, nn.Linear) or any(True for _ in module.children()):
        return False
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    narrow = (torch.int8, torch.uint8, torch.int16, torch.int32)
    return any(tensor.ndim > 1 and tensor.dtype in narrow for tensor in tensors)
