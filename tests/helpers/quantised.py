"""Small backbones on disk whose layers are wide enough to be quantised: groups are of 32 and 64."""

from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.backbones import fill, tiny_llama, tiny_t5
from mttl.aggregation.packed_weights import dense_weight, keep_format
from mttl.models.quantised import LIBRARIES

KINDS = ("nf4", "int8", "int4")
FAMILIES = ("t5", "llama")
# Of the products: in int4 the kernel's order of summation, in the others that of PyTorch's.
ROUNDING = 1e-5


def save_backbone(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Write a model with fixed random weights that reads bytes; return its folder."""
    if family == "t5":
        sizes = {"d_model": 64, "d_kv": 32, "d_ff": 96, "num_layers": 1, "num_heads": 2}
        more = {"vocab_size": 384, "feed_forward_proj": "gated-gelu"}
        model = tiny_t5(seed=seed, **sizes, **more)
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
        more = {"num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": 1}
        model = tiny_llama(seed=seed, vocab_size=384, **sizes, **more)
    model.to(torch.float32).save_pretrained(folder)
    return folder


def require(kind: str) -> None:
    """Skip a test where the library of a kind is missing."""
    for library in LIBRARIES[kind]:
        pytest.importorskip(library, reason=f"{kind} needs the extra 'quantised'")


def packed_linear(kind: str, n_in: int, n_out: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer of random weights, quantised as a backbone's layers are."""
    require(kind)
    layer = nn.Linear(n_in, n_out, bias=bias).requires_grad_(False)
    fill(layer)
    if kind == "nf4":
        from bitsandbytes.nn import Linear4bit

        made = Linear4bit(
            n_in, n_out, bias, torch.float32, compress_statistics=False, quant_type="nf4"
        )
        made.load_state_dict(layer.state_dict())
        model = nn.Sequential(made.to("cpu").requires_grad_(False))
    else:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        model = nn.Sequential(layer)
        quantize_(
            model,
            Int8WeightOnlyConfig()
            if kind == "int8"
            else PrototypeInt4WeightOnlyConfig(group_size=32),
        )
    keep_format(model)
    return model[0]  # type: ignore[return-value]


def dense_copy(layer: nn.Linear) -> nn.Linear:
    """Return a plain layer with the same weight, unpacked."""
    weight = dense_weight(layer)
    made = nn.Linear(weight.shape[1], weight.shape[0], layer.bias is not None)
    with torch.no_grad():
        made.weight.copy_(weight)
        if layer.bias is not None:
            made.bias.copy_(layer.bias)
    return made.requires_grad_(False)
