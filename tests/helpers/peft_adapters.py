"""Adapters that PEFT makes, with drawn weights; what imports this is skipped without PEFT."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from helpers.backbones import fill
from helpers.gyms import TINY_LLAMA, write_config, write_gym
from mttl.models.backbone import build_random

peft = pytest.importorskip("peft")


def write_base(folder: Path) -> Any:
    """Write a gym, a decoder-only model, and configurations with it and of random weights."""
    gym = write_gym(folder / "gym")
    write_config(folder / "random.yaml", gym, backbone=TINY_LLAMA)
    base = build_random("llama", TINY_LLAMA["config"])
    fill(base)
    base.save_pretrained(folder / "base")
    below = {"kind": "pretrained", "name": str(folder / "base"), "tokenizer": "byte"}
    write_config(folder / "tiny.yaml", gym, backbone=below)
    return base


def save_lora(base: Path, out: Path, seed: int, **settings: Any) -> Any:
    """Write a LoRA adapter over a decoder-only model on disk, and return both."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    layers = [layer for layer in model.modules() if hasattr(layer, "lora_A")]
    for number, layer in enumerate(layers):
        fill(layer.lora_A, seed + number)
        fill(layer.lora_B, seed + number + 5)
    model.save_pretrained(out)
    return model.eval()
