"""Differences of models that prevent a merge."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from mttl.checkpoints.saved_inventory import other_shapes
from mttl.io.errors import CheckpointError, grouped
from mttl.io.reading import read_json
from mttl.merging.weights_folder import Weights

# Settings about the origin, training or use of a model, which do not affect the meaning of weights.
INCIDENTAL = (
    *("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"),
    *("task_specific_params", "_attn_implementation", "output_past", "architectures"),
)


def weight_differences(base: Weights, other: Weights) -> list[str]:
    """Return the differences of a model's tensors from a base's in name, shape, type and integers.

    Floating-point types may differ, since a base often has fewer bits. Tensors that the loaded
    model does not use may be missing, as may buffers of zeros in the base.
    """
    common = [name for name in base if name in other]
    loaded = base.loaded
    causes = {
        "missing": [name for name in base if name not in other and not loaded.is_extra(name)],
        "unexpected": [
            name
            for name in other
            if name not in base and not (name in loaded.buffers and not other[name].any())
        ],
        "of another shape": other_shapes(other, base),
        "of another type": [
            f"{name} {_short(other[name])} instead of {_short(base[name])}"
            for name in common
            if other[name].dtype != base[name].dtype
            and not (other[name].is_floating_point() and base[name].is_floating_point())
        ],
    }
    if not any(causes.values()):
        causes["integers with other values"] = [
            name
            for name in common
            if not base[name].is_floating_point() and not torch.equal(base[name], other[name])
        ]
    return grouped(causes)


def fisher_differences(base: Weights, fisher: Weights, changed: Sequence[str]) -> list[str]:
    """Return the differences of Fisher information from a base in names and shapes."""
    return grouped(
        {
            "missing": [name for name in changed if name not in fisher],
            "unexpected": [name for name in fisher if name not in base],
            "of another shape": other_shapes(fisher, base),
        }
    )


def setting_differences(base: Path, other: Path) -> list[str]:
    """Return the differences of two models' settings and vocabularies.

    Settings are compared as transformers reads them, with its defaults. Dropout and the settings in
    `INCIDENTAL` may differ, and a file that one folder lacks is not compared.
    """
    ours, theirs = _read_settings(base), _read_settings(other)
    differing = [
        f"{key} {theirs.get(key)!r} instead of {ours.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys() if ours and theirs else ())
        if ours.get(key) != theirs.get(key)
    ]
    tokens = [_vocabulary(folder / "tokenizer.json") for folder in (base, other)]
    differ = all(tokens) and tokens[0] != tokens[1]
    words = ["tokenizer.json has another vocabulary"] if differ else []
    return grouped({"different settings": differing, "tokenizer": words})


def _short(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _settings(path: Path) -> dict[str, Any]:
    """Return the content of a model's file; empty if there is none."""
    return read_json(path, CheckpointError, dict) if os.path.lexists(path) else {}


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that affect the meaning of weights, as transformers reads them."""
    stored = _settings(folder / "config.json")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        use = {key for key in GenerationConfig().to_dict() if not key.endswith("_token_id")}
        known = type(config)().to_dict().keys() - use
        stored = {key: value for key, value in config.to_dict().items() if stored and key in known}
    except Exception:  # transformers raises various errors for unknown settings
        pass
    return _meaning(stored)


def _meaning(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _meaning(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if key not in INCIDENTAL and "drop" not in str(key)
    }


def _vocabulary(path: Path) -> Any:
    found = _settings(path)
    return found and (found.get("model", {}).get("vocab"), found.get("added_tokens"))
