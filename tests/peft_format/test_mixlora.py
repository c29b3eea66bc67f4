"""A MixLoRA adapter becomes a run that answers as the package `mixlora`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.backbones import batch, tiny_llama
from helpers.chat_templates import save_tokenizer
from mttl.assembly.model import load_run
from mttl.commands import import_peft
from mttl.io.errors import CheckpointError
from mttl.peft_format.mixlora import read_mixlora

E, R = 4, 2
CONFIG = {
    **{"peft_type": "MIXLORA", "task_type": "CAUSAL_LM", "bias": "none"},
    **{"base_model_name_or_path": "base", "routing_strategy": "mixlora", "num_experts": E},
    **{"r": R, "lora_alpha": 4, "lora_dropout": 1e-9, "top_k": 2, "act_fn": "silu"},
    "target_modules": ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"],
    "expert_lora": {"r": R, "lora_alpha": 4, "lora_dropout": 1e-9},
}
# (O, I) of the projections of `tiny_llama`.
SIZES = {"q_proj": (16, 16), "v_proj": (8, 16), "gate_proj": (24, 16), "up_proj": (24, 16)}
SIZES["down_proj"] = (16, 24)


def write_adapter(folder: Path) -> Path:
    """Write an adapter with fixed values, as MixLoRA's training code does."""
    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int) -> None:
        n = torch.arange(shape[0] * shape[1], dtype=torch.float32)
        tensors[f"{name}.weight"] = (n * (1.3 + 0.1 * len(tensors))).sin().view(shape) / 2

    for layer in range(2):
        add(f"mixlora.layers.{layer}.mlp.moe_gate", E, 16)
        for name, (n_out, n_in) in SIZES.items():
            block = "self_attn" if name in ("q_proj", "v_proj") else "mlp"
            place = f"mixlora.layers.{layer}.{block}.{name}"
            experts = [f"{place}.experts.{e}" for e in range(E)]
            for own in [place] if block == "self_attn" else experts:
                add(f"{own}.lora_A", R, n_in)
                add(f"{own}.lora_B", n_out, R)
    folder.mkdir()
    torch.save(tensors, folder / "adapter_model.bin")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    return folder


def test_an_imported_adapter_is_that_of_the_package(tmp_path: Path) -> None:
    """The logits in mixlora.csv are those of mixlora 0.2.3; see the next test."""
    base = tiny_llama()
    base.resize_token_embeddings(400)  # for the tokenizer
    base.save_pretrained(tmp_path / "base")
    save_tokenizer(tmp_path / "base", None)
    given = [str(write_adapter(tmp_path / "mixed")), "--backbone", str(tmp_path / "base")]
    assert import_peft.main([*given, "--out", str(tmp_path / "run")]) == 0
    model = load_run(tmp_path / "run").model.eval()
    with torch.no_grad():
        found = model(torch.tensor([0, 0]), input_ids=batch(2)["input_ids"]).logits[..., :40]
    expected = np.loadtxt(Path(__file__).with_name("mixlora.csv"), delimiter=",")
    # Single precision; six digits in the file.
    np.testing.assert_allclose(found.flatten(0, 1).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_file_has_the_logits_of_the_package(tmp_path: Path) -> None:
    module = pytest.importorskip("mixlora.model", reason="pip install --no-deps mixlora==0.2.3")
    folder, network = write_adapter(tmp_path / "mixed"), tiny_llama()
    config, weights = module.load_adapter_weights(str(folder), device="cpu")
    module.inject_adapter_in_model(network.eval(), config, weights)
    with torch.no_grad():
        found = network(input_ids=batch(2)["input_ids"]).logits
    expected = np.loadtxt(Path(__file__).with_name("mixlora.csv"), delimiter=",")
    np.testing.assert_allclose(found.flatten(0, 1).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_imported(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "mixed")
    whole = torch.load(folder / "adapter_model.bin")
    for part, message in (
        ("layers.0.mlp.moe_gate", "lacks router.weight of 'model.layers.0.mlp'"),
        (r"layers.1.mlp.up_proj.*lora_A", r"lacks experts.changes_of.up.down of 'model.layers.1"),
    ):
        kept = {name: value for name, value in whole.items() if not re.search(part, name)}
        torch.save(kept, folder / "adapter_model.bin")
        with pytest.raises(CheckpointError, match=message):
            read_mixlora(folder)
    torch.save(whole, folder / "adapter_model.bin")
    for changes, tensor, message in (
        ({"use_dora": True}, None, "uses use_dora, which cannot be imported"),
        ({"num_experts": 5}, None, "lacks a factor of: 4"),
        ({}, "mixlora.layers.0.mlp.moe_gate.bias", "unknown tensor 'mixlora.layers.0.mlp.moe_gate"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
        if tensor:
            torch.save({tensor: torch.zeros(1)}, folder / "adapter_model.bin")
        with pytest.raises(CheckpointError, match=message):
            read_mixlora(folder)
