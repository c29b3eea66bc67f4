"""PEFT folders on disk: ``adapter_config.json`` and ``adapter_model.safetensors``.

They are written and read without PEFT. Names of tensors are
``base_model.model.<path of the layer>.<parameter>``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mttl.io.errors import CheckpointError, grouped
from mttl.io.files import write_text
from mttl.io.reading import read_json
from mttl.io.safetensors_file import read_tensors, write_tensors
from mttl.models.backbone import is_encoder

PREFIX = "base_model.model."
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MIXLORA = "MIXLORA"


@dataclass(frozen=True)
class PeftFolder:
    """An adapter in the format of PEFT."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_peft(folder: str | Path) -> PeftFolder:
    """Return the adapter in a PEFT folder; CheckpointError for pickles and integer tensors.

    The tensors of a MixLoRA adapter are left to `read_mixlora`.
    """
    path = Path(folder)
    if not (path / CONFIG).exists():
        raise CheckpointError(f"'{path}' is not a PEFT folder: it has no {CONFIG}")
    config = read_json(path / CONFIG, CheckpointError, dict)
    if config.get("peft_type") == MIXLORA:
        return PeftFolder(path, config, {})
    if not (path / TENSORS).exists():
        problem = f"has no {TENSORS}. Copy the whole folder again"
        if (path / PICKLE).is_file():
            problem = (
                f"has {PICKLE}, a pickle, which can run any code when it is loaded; if you trust "
                "it, load it with PEFT and save it again (save_pretrained)"
            )
        raise CheckpointError(f"'{path}' {problem}")
    named: dict[str, Tensor] = {}
    for name, tensor in read_tensors(path / TENSORS).items():
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"'{path}': '{name}' has the type {tensor.dtype}; save it in floating point"
            )
        if not name.startswith(PREFIX):
            raise CheckpointError(
                f"'{path}' has a tensor '{name}'; PEFT's names start with '{PREFIX}'"
            )
        named[name.removeprefix(PREFIX)] = tensor
    if not named:
        raise CheckpointError(f"'{path}' has no tensors")
    return PeftFolder(path, config, named)


def task_type_of(network: Any) -> str:
    """Return PEFT's task type of a language model; it has none for masked tokens."""
    if is_encoder(network):
        return "FEATURE_EXTRACTION"
    return "SEQ_2_SEQ_LM" if network.config.is_encoder_decoder else "CAUSAL_LM"


def of_base(name: str | None, task_type: str) -> dict[str, Any]:
    """Return the settings of every adapter: base model and task type."""
    return {"base_model_name_or_path": name, "task_type": task_type, "inference_mode": True}


def write_peft(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    prefix: str = PREFIX,
    file: str = TENSORS,
) -> None:
    """Write the two files of a PEFT adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    # Clones, since safetensors rejects tensors that share memory, as those of a group do.
    named = {
        (prefix if "." in name else "") + name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in tensors.items()
    }
    write_tensors(folder / file, named, {"format": "pt"})
    write_text(folder / CONFIG, json.dumps(dict(config), indent=2, sort_keys=True) + "\n")


def by_layer(folder: PeftFolder, parameters: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
    """Return an adapter's tensors by layer; CheckpointError for unknown or missing tensors."""
    layers: dict[str, dict[str, Tensor]] = {}
    unknown = []
    for name, tensor in folder.tensors.items():
        parameter = next((known for known in parameters if name.endswith(f".{known}")), None)
        if parameter is None:
            unknown.append(name)
        else:
            layers.setdefault(name.removesuffix(f".{parameter}"), {})[parameter] = tensor
    lacking = [f"{path}.{x}" for path, own in layers.items() for x in parameters if x not in own]
    causes = {"these tensors cannot be used": unknown, "these tensors are missing": lacking}
    if wrong := grouped(causes):
        raise CheckpointError(
            f"'{folder.path}': {'; '.join(wrong)}. Only adapters of linear layers with "
            f"{', '.join(parameters)} can be read"
        )
    return layers
