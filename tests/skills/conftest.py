import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)


def t5():
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=64,
            d_model=16,
            d_kv=4,
            num_heads=4,
            d_ff=24,
            num_layers=2,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def bart():
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=64,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            dropout=0.0,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
    )


def llama():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=1,
            pad_token_id=0,
        )
    )


BACKBONES = {"t5": t5, "bart": bart, "llama": llama, "gpt2": gpt2}


@pytest.fixture
def make_backbone():
    def make(name):
        torch.manual_seed(0)
        return BACKBONES[name]().requires_grad_(False)

    return make


@pytest.fixture
def text_batch():
    """Task ids and inputs of three examples for any of the backbones."""
    generator = torch.Generator().manual_seed(1)
    task_ids = torch.tensor([0, 3, 1])
    ids = torch.randint(2, 64, (3, 7), generator=generator)
    labels = torch.randint(2, 64, (3, 7), generator=generator)
    return task_ids, {"input_ids": ids, "labels": labels}
