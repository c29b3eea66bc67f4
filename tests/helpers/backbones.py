"""Tiny language models with fixed random weights, one per architecture family."""

from typing import Any

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY = 40


def fill(module: nn.Module, seed: int = 0) -> None:
    """Set every parameter to fixed values that are far from zero and from each other.

    The usual initialisations hide mistakes: zeros, and weights so small that outputs hardly
    depend on them.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.dim() > 1:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.1 * noise)  # keeps the ones of a normalisation


def tiny_t5(dropout: float = 0.0, *, seed: int = 0, **changes: Any) -> T5ForConditionalGeneration:
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": 24}
    sizes |= {"num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0} | changes
    return _filled(T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=dropout)), seed)


def tiny_bart() -> BartForConditionalGeneration:
    sizes = {
        f"{stack}_{name}": size
        for stack in ("encoder", "decoder")
        for name, size in {"layers": 2, "attention_heads": 4, "ffn_dim": 24}.items()
    }
    sizes |= {"vocab_size": VOCABULARY, "d_model": 16, "max_position_embeddings": 32}
    config = BartConfig(**sizes, dropout=0.0, forced_eos_token_id=None)
    return _filled(BartForConditionalGeneration(config))


def tiny_llama(*, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 64, "pad_token_id": 0} | changes
    return _filled(LlamaForCausalLM(LlamaConfig(**sizes)), seed)


def tiny_gpt2() -> GPT2LMHeadModel:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
    sizes |= {f"{place}_pdrop": 0.0 for place in ("resid", "embd", "attn")}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return _filled(GPT2LMHeadModel(GPT2Config(**sizes)))


BACKBONES = {"t5": tiny_t5, "bart": tiny_bart, "llama": tiny_llama, "gpt2": tiny_gpt2}


def batch(n_examples: int, *, length: int = 5, seed: int = 1) -> dict[str, torch.Tensor]:
    """Return ``input_ids`` and ``labels`` without padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n_examples, length)
    return {
        "input_ids": torch.randint(3, VOCABULARY, shape, generator=generator),
        "labels": torch.randint(3, VOCABULARY, shape, generator=generator),
    }


def _filled(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    fill(model, seed)
    return model.eval()
