"""Weights that bitsandbytes or torchao keep in fewer bits: recognise, unpack and hold them still.

Neither library is imported here unless one of its weights is met.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BITSANDBYTES = ("Params4bit", "Int8Params")
NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)


def is_packed(weight: Any) -> bool:
    """Return whether a tensor is a weight that one of the libraries keeps."""
    kind = type(weight)
    packed = kind.__name__ in BITSANDBYTES or kind.__module__.startswith("torchao.")
    return packed or hasattr(weight, "quant_state")  # a part of one that is sharded


def is_plain_linear(layer: nn.Module) -> bool:
    """Return whether a layer is a product with a tensor like any other.

    A layer of torchao is an `nn.Linear`, too: only the class of its weight tells.
    """
    return type(layer) is nn.Linear and type(layer.weight) in (nn.Parameter, Tensor)


def packed_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers with a packed weight by path."""
    return {
        path: module
        for path, module in model.named_modules()
        if is_packed(module._parameters.get("weight"))
    }


def dense_weight(layer: nn.Module) -> Float[Tensor, "O I"]:
    """Return the weight of a linear layer in floating point: unpacked where it is packed.

    Raises:
        ValueError: If the weight was repacked for inference.
    """
    weight: Any = layer.weight
    # A weight that was sharded and put together has scales in the layer only.
    state: Any = getattr(weight, "quant_state", None) or getattr(layer, "quant_state", None)
    if state is None and not is_packed(weight):
        return weight
    kind = type(weight)
    if state is not None:
        if getattr(state, "packing_format_for_cpu", False):
            raise ValueError(
                "bitsandbytes has repacked a 4-bit weight for inference, with rounded scales; load "
                "the model again, and call hold_still (mttl.aggregation.packed_weights) on it"
            )
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(weight.data, state)
    if kind.__name__ == "Int8Params":
        from bitsandbytes.functional import int8_vectorwise_dequant

        # The scales move from the weight to the state of the layer with its first pass.
        scales: Any = weight.SCB if weight.SCB is not None else layer.state.SCB  # type: ignore[union-attr]
        return int8_vectorwise_dequant(weight.data, scales)
    if kind.dequantize is not Tensor.dequantize:
        return weight.dequantize()
    # What only its kernel can read: its products with the unit vectors.
    units = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    return nn.functional.linear(units, weight).t()


def is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer keeps its weight as (I, O): GPT-2's do."""
    return type(layer).__name__ == "Conv1D"


def stored(weight: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the shape that a weight has for its layer, and numbers that tell it from others.

    These are the scales of its blocks, where there are any. A scale is a largest magnitude: it
    does not depend on the machine that packs the weight, nor on the layout of its entries, and
    it differs between weights. It is finite where the weight was.
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
    """Return the tensors that hold a packed weight."""
    kept: Any = weight
    if type(weight).__name__ == "Params4bit":
        return [weight.data, kept.quant_state.absmax]
    if type(weight).__name__ == "Int8Params":
        return [weight.data]
    return [getattr(kept, name) for name in kept.__tensor_flatten__()[0]]


def hold_still(model: nn.Module) -> None:
    """Keep evaluation from changing packed weights, and let gradients through all of them.

    On processors with bfloat16, bitsandbytes repacks a 4-bit weight with the first pass in
    evaluation: scales are rounded, so that the network is another one from then on. And weights
    that only a kernel can read stop gradients, without an error.
    """
    for path, layer in packed_layers(model).items():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            setattr(layer, "support_avx512bf16_for_cpu", False)  # noqa: B010
        weight: Any = layer.weight
        bitsandbytes = type(weight).__name__ in BITSANDBYTES
        if not bitsandbytes and type(weight).dequantize is Tensor.dequantize:
            model.set_submodule(path, KernelLinear(layer))


class KernelLinear(nn.Linear):
    """A linear layer whose weight only a kernel can read, with a gradient for its input."""

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
        # The kernel takes one dtype, that of the scales.
        return nn.functional.linear(x.to(layer.weight.dtype), layer.weight, bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ dense_weight(ctx.layer).to(grad.dtype), None


def is_foreign(module: nn.Module) -> bool:
    """Return whether a module keeps matrices of small whole numbers, as those of GPTQ and AWQ."""
    if isinstance(module, nn.Linear) or any(True for _ in module.children()):
        return False
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.ndim > 1 and tensor.dtype in NARROW for tensor in tensors)
