"""Reader of MixLoRA adapters: LoRA in attention, and feed-forward experts that differ in LoRA."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mttl.io.errors import CheckpointError, raised_as
from mttl.io.reading import read_json
from mttl.peft_format.peft_folder import CONFIG, PICKLE

_NAME = re.compile(
    r"mixlora\.(layers\.\d+)\.(?:(mlp\.moe_gate)|(self_attn|mlp)\.(\w+)(?:\.experts\.(\d+))?"
    r"\.lora_([AB]))\.weight"
)
# Projections as in `mttl.skills.blocks.lora_block`.
_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "fc1": "up", "fc2": "down"}


def read_mixlora(
    folder: Path,
) -> tuple[dict[str, Any], dict[str, tuple[Tensor, Tensor]], dict[str, dict[str, Tensor]]]:
    """Return settings, factors (1, I, r) and (1, O, r) by layer of attention, and experts by block.

    The tensors of a block are named as in `mttl.moe.layer.MoELayer`. The file is a pickle, which is
    read without running code.

    Raises:
        CheckpointError: If a tensor is unknown or missing, or a setting is not supported.

    References:
        The package `mixlora`, https://github.com/TUDB-Labs/MixLoRA; Li et al., arXiv:2404.15159.
    """
    config = read_json(folder / CONFIG, CheckpointError, dict)
    own = config | config.get("expert_lora", {})
    if used := [name for name in ("use_dora", "use_rslora") if config.get(name) or own.get(name)]:
        raise CheckpointError(f"'{folder}' uses {', '.join(used)}, which cannot be imported")
    with raised_as(CheckpointError, f"'{folder / PICKLE}'", OSError, pickle.UnpicklingError):
        tensors = torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
    attention: dict[str, dict[str, Tensor]] = {}
    blocks: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if not (found := _NAME.fullmatch(name)):
            raise CheckpointError(f"'{folder}' has an unknown tensor '{name}'")
        layer, gate, block, projection, expert, side = found.groups()
        factor = tensor.t() if side == "A" else tensor
        if gate:
            blocks.setdefault(f"model.{layer}.mlp", {})["router.weight"] = tensor
        elif block == "mlp":
            key = f"experts.changes_of.{_PARTS[projection]}.{'down' if side == 'A' else 'up'}"
            of_block = blocks.setdefault(f"model.{layer}.mlp", {})
            of_block.setdefault(key, {})[int(expert)] = factor
        else:
            attention.setdefault(f"model.{layer}.{block}.{projection}", {})[side] = factor
    for path, of_block in blocks.items():
        bases = {key.rpartition(".")[0] for key in of_block} - {"router"}
        wanted = {"router.weight", *(f"{base}.{end}" for base in bases for end in ("down", "up"))}
        if missing := sorted(wanted - of_block.keys()):
            raise CheckpointError(f"'{folder}' lacks {', '.join(missing)} of '{path}'")
    with raised_as(CheckpointError, f"'{folder}' lacks a factor of", KeyError):
        pairs = {path: (one["A"][None], one["B"][None]) for path, one in attention.items()}
        for of_block in blocks.values():
            for key, value in of_block.items():
                if isinstance(value, dict):
                    of_block[key] = torch.stack([value[n] for n in range(config["num_experts"])])
    return config, pairs, blocks
