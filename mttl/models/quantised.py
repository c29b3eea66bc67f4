"""Settings and checks of quantised backbones."""

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

# transformers needs accelerate to load onto a given device.
LIBRARIES: dict[Quantisation, tuple[str, ...]] = {
    "nf4": ("bitsandbytes", "accelerate"),
    "int8": ("torchao", "accelerate"),
    "int4": ("torchao", "accelerate"),
}
# Number of weights of a row that share a scale.
GROUPS: dict[Quantisation, int] = {"nf4": 64, "int8": 1, "int4": 32}


def check_quantisation(kind: Quantisation) -> None:
    """Raise ConfigError if the libraries or kernels of a quantisation are missing."""
    place = f"backbone.quantize ('{kind}')"
    if missing := missing_libraries(*LIBRARIES[kind]):
        needed = f"{' and '.join(missing)}: pip install {' '.join(missing)}"
        raise ConfigError(f"{place} needs {needed}")
    if kind == "int4" and torch.cuda.is_available():
        raise ConfigError(
            f"{place} has only a CPU kernel, and this machine has a GPU: use nf4, or hide the GPU "
            "(CUDA_VISIBLE_DEVICES=)"
        )


def quantisation_settings(kind: Quantisation, empty: PreTrainedModel, dtype: torch.dtype) -> Any:
    """Return the ``quantization_config`` of transformers.

    Scales are not quantised again, since they identify the backbone.
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

    These are the layers that transformers excludes (the head, and layers in single precision), and
    those whose rows are not divisible into groups: int4 kernels do not support them, and the CPU
    kernel of bitsandbytes unpacks them wrongly.
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
    """Return the memory that quantisation freed to the system; it is as large as the model."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
