"""Which linear layers of many architectures are in attention, and in feed-forward networks."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from mttl.routing import RoutingSlot
from mttl.skills import LoRAInventory, attach_skills

STACKS = ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")
DEPTHS = ("num_layers", "n_layer", "n_layers", *STACKS)
QKVO = "q_proj k_proj v_proj o_proj"
BART = "k_proj v_proj q_proj out_proj"
GATED = "gate_proj up_proj down_proj"
MLA = "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj o_proj"
LED = "query key value query_global key_global value_global output"
DELTA = "in_proj_qkvz in_proj_ba out_proj"
# Names of the layers in the order of the backbone, each once, and how many there are.
EXPECTED = {
    "t5": ("q k v o", 24, "wi wo", 8),
    "bart": (BART, 24, "fc1 fc2", 8),
    "llama": (QKVO, 8, GATED, 6),
    "gpt2": ("c_attn c_proj", 4, "c_fc c_proj", 4),
    "gpt_neox": ("query_key_value dense", 4, "dense_h_to_4h dense_4h_to_h", 4),
    "bert": ("query key value dense", 8, "dense", 4),
    "bloom": ("query_key_value dense", 4, "dense_h_to_4h dense_4h_to_h", 4),
    "opt": (BART, 8, "fc1 fc2", 4),
    "gptj": ("k_proj v_proj q_proj out_proj", 8, "fc_in fc_out", 4),
    "longt5": ("q k v o", 24, "wi wo", 8),
    "led": (f"{LED} {BART}", 30, "fc1 fc2", 8),
    "t5gemma": (QKVO, 24, GATED, 12),
    "deepseek_v3": (MLA, 10, GATED, 6),
    "deepseek_v32": (MLA, 10, GATED, 6),  # its indexer only chooses
    "mpt": ("Wqkv out_proj", 4, "up_proj down_proj", 4),
    "qwen3_next": (f"{DELTA} {QKVO}", 13, GATED, 12),
    "lfm2": ("q_proj k_proj v_proj out_proj", 8, "w1 w3 w2", 6),
    "mamba2": ("", 0, "", 0),
    "falcon_h1": (QKVO, 8, GATED, 6),
    "granitemoehybrid": ("", 0, "input_linear output_linear", 4),
    "switch_transformers": ("q k v o", 24, "wi wo", 4),  # without the experts that tokens choose
    "afmoe": (f"{QKVO} gate_proj", 10, GATED, 6),
    "rwkv": ("key value receptance output", 8, "key receptance value", 6),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_words_select_by_position(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    # One full attention in four of Qwen3-Next.
    config.num_hidden_layers = 4 if kind == "qwen3_next" else 2
    for key in DEPTHS:
        if hasattr(config, key):
            setattr(config, key, 2)
    if kind == "t5gemma":
        config.encoder.num_hidden_layers = config.decoder.num_hidden_layers = 2
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    names, n_attention, mlp_names, n_mlp = EXPECTED[kind]
    for word, ends, count in (("attention", names, n_attention), ("mlp", mlp_names, n_mlp)):
        with torch.device("meta"):
            backbone = auto.from_config(config)
        found: dict[str, None] = {}
        if count:
            made = attach_skills(backbone, make, targets=[word], slot=RoutingSlot())
            found = dict.fromkeys(row.path.rpartition(".")[2] for row in made.layers)
            assert made.coverage[word] == (len(made.layers), len(made.layers)) == (count, count)
        else:
            with pytest.raises(ValueError, match=f"'{word}' matches no linear layer"):
                attach_skills(backbone, make, targets=[word], slot=RoutingSlot())
        assert " ".join(found) == ends


def make(n_in: int, n_out: int) -> LoRAInventory:
    return LoRAInventory(n_in, n_out, 2, rank=1)
