"""Models as hubs store them: old settings, copies of tied tensors, no prefixes, old buffers."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def without(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items()}


def t5(tensors: Tensors) -> Tensors:
    copies = ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    shared = tensors["shared.weight"]
    return (
        tensors | {f"{name}.weight": shared.clone() for name in copies} | {unused: shared.clone()}
    )


def bart(tensors: Tensors) -> Tensors:
    """As of a BartModel, whose head is missing."""
    tensors = without("model.", tensors)
    del tensors["final_logits_bias"]
    copies = {f"{name}.embed_tokens.weight" for name in ("encoder", "decoder")}
    return tensors | {name: tensors["shared.weight"].clone() for name in copies}


def gpt2(tensors: Tensors) -> Tensors:
    tensors = without("transformer.", tensors)
    for layer in (0, 1):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return tensors


def llama(tensors: Tensors) -> Tensors:
    name = "model.layers.{}.self_attn.rotary_emb.inv_freq"
    return tensors | {name.format(layer): torch.ones(2) for layer in (0, 1)}


FORMS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "t5": (t5, "T5WithLMHeadModel"),
    "bart": (bart, "BartModel"),
    "gpt2": (gpt2, "GPT2LMHeadModel"),
    "llama": (llama, "LlamaForCausalLM"),
}


def store(folder: Path, family: str) -> None:
    """Rewrite a folder as a hub has it."""
    change, architecture = FORMS[family]
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    config["architectures"] = [architecture]
    config["transformers_version"] = "4.6.0"
    config |= {"gradient_checkpointing": False, "num_beams": 4} if family != "llama" else {}
    if family == "llama":  # its settings of then
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        del config["attention_bias"], config["mlp_bias"]
    (folder / "config.json").write_text(json.dumps(config))
