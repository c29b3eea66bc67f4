"""Small backbones on disk whose layers are wide enough to be quantised: groups are of 32 and 64."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from helpers.backbones import fill

KINDS = ("nf4", "int8", "int4")
FAMILIES = ("t5", "llama")
# Of the products: in int4 the kernel's order of summation, in the others that of PyTorch's.
ROUNDING = 1e-5


def save_backbone(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Write a model with fixed random weights that reads bytes; return its folder."""
    if family == "t5":
        settings = T5Config(
            vocab_size=384,
            d_model=64,
            d_kv=32,
            d_ff=96,
            num_layers=1,
            num_heads=2,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
        model = T5ForConditionalGeneration(settings)
    else:
        settings = LlamaConfig(
            vocab_size=384,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
        model = LlamaForCausalLM(settings)
    fill(model, seed)
    model.to(torch.float32).save_pretrained(folder)
    return folder
