"""Backbones kept in fewer bits: what transformers is asked for, and what is refused before."""

import ctypes
import sys
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel, TorchAoConfig
from transformers.quantizers.base import get_keys_to_not_convert

from mttl.config.backbone_schema import Quantisation
from mttl.io.errors import ConfigError
from mttl.runtime.libraries import missing_libraries

# transformers loads onto a named device with accelerate alone.
LIBRARIES: dict[Quantisation, tuple[str, ...]] = {
    "nf4": ("bitsandbytes", "accelerate"),
    "int8": ("torchao", "accelerate"),
    "int4": ("torchao", "accelerate"),
}
# Weights of a row that share a scale, one group after another.
GROUPS: dict[Quantisation, int] = {"nf4": 64, "int8": 1, "int4": 32}


def check_quantisation(kind: Quantisation) -> None:
    """Refuse a quantisation whose libraries, or kernels, are absent here."""
    problem = ""
    if missing := missing_libraries(*LIBRARIES[kind]):
        problem = f"needs {' and '.join(missing)}: pip install {' '.join(missing)}"
    elif kind == "int4" and torch.cuda.is_available():
        problem = (
            "has a kernel for processors only, and this machine has a GPU: take nf4, or hide the "
            "GPU (CUDA_VISIBLE_DEVICES=)"
        )
    if problem:
        raise ConfigError(f"backbone.quantize ('{kind}') {problem}")


def quantisation_settings(kind: Quantisation, empty: PreTrainedModel, dtype: torch.dtype) -> Any:
    """Return what transformers takes as ``quantization_config``.

    Scales are not quantised a second time: they tell one backbone from another.
    """
    kept = kept_layers(empty, GROUPS[kind])
    if kind == "nf4":
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=kept,
        )
    if kind == "int8":
        from torchao.quantization import Int8WeightOnlyConfig

        return TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=kept)
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    settings = PrototypeInt4WeightOnlyConfig(group_size=GROUPS[kind])
    return TorchAoConfig(settings, modules_to_not_convert=kept)


def kept_layers(model: PreTrainedModel, group: int) -> list[str]:
    """Return the paths of layers that stay in floating point.

    These are what transformers leaves (the head, and what a model needs in single precision), and
    layers whose rows do not divide into groups: kernels of int4 refuse them, and bitsandbytes'
    kernel for processors unpacks them with the scales of other rows.
    """
    single = tuple(model._keep_in_fp32_modules or ())
    kept = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and (module.in_features % group or path.rpartition(".")[2] in single)
    ]
    return sorted({*get_keys_to_not_convert(model), *kept})


def return_freed_memory() -> None:
    """Give the system what packing has freed: the heap is full of holes, as large as the model."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
