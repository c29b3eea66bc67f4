"""Conversion of low-rank changes to LoRA adapters of PEFT, and back."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mttl.io.errors import CheckpointError, raised_as
from mttl.merging.fold import fold, require_plain, unfold
from mttl.merging.low_rank_factors import LowRank, mixture
from mttl.peft_format.peft_folder import PeftFolder, by_layer
from mttl.skills.skilled_layer import SkilledLayer
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.lora import LoRAInventory

DOWN, UP = "lora_A.weight", "lora_B.weight"
# Settings under which an adapter is more than a low-rank change of the base model's own weights.
OTHER_MODELS = (
    *("use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens", "layer_replication"),
    *("arrow_config", "monteclora_config", "kasa_config", "modules_to_save", "target_parameters"),
    *("trainable_token_indices", "lora_bias"),
)
# Initialisations that change the base weights, which such adapters need.
OTHER_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")


def mixture_adapter(
    model: SkilledModel, mixing: Float[Tensor, "G H K"], rank: int | None = None
) -> dict[str, LowRank]:
    """Return one mixture as a pair of factors per layer, padded with zeros to one rank."""
    check_paths(model)
    try:
        return mixture_factors(model.skilled_layers(), mixing, rank)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"the skills cannot be exported as LoRA: {error}. {instead(model, mixing)}"
        ) from error


def mixture_factors(
    layers: Mapping[str, SkilledLayer], mixing: Float[Tensor, "G H K"], rank: int | None
) -> dict[str, LowRank]:
    """Return the factors of some layers, as `mixture_adapter`, with the errors of `mixture`."""
    parts = {path: mixture(own.inventory, mixing[own.group], rank) for path, own in layers.items()}
    width = max(part.rank for part in parts.values())
    return {path: part.padded(width) for path, part in parts.items()}


def instead(model: SkilledModel, mixing: Float[Tensor, "G H K"]) -> str:
    """Return the advice for a mixture that cannot be exported: merge it, or use the run."""
    if model.heads is not None:
        return "Use the run itself (mttl predict, mttl serve)"
    try:
        unfold(fold(model, mixing))
    except ValueError:
        return "Use the run itself (mttl predict, mttl serve)"
    return "Write a whole model instead (mttl merge-task)"


def lora_adapter(
    adapter: Mapping[str, LowRank],
    *,
    transposed: bool,
    scaling: tuple[float, bool, float] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return PEFT's configuration, without the base, and tensors for factors of one rank.

    PEFT multiplies the change by ``lora_alpha / r``, or ``lora_alpha / √r`` with ``use_rslora``.
    Without ``scaling`` the scale stays in the output factor, and ``lora_alpha = r``.
    """
    rank = next(iter(adapter.values())).rank
    scale, rslora, dropout = scaling or (1.0, False, 0.0)
    alpha = scale * (rank**0.5 if rslora else rank)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": dropout,
        "bias": "none",
        "use_rslora": rslora,
        "use_dora": False,
        "fan_in_fan_out": transposed,
        "init_lora_weights": True,
        "target_modules": list(adapter),  # full paths, so that nothing else matches
    }
    tensors = {}
    for path, part in adapter.items():
        tensors[f"{path}.{DOWN}"] = part.down.t()
        tensors[f"{path}.{UP}"] = part.up / scale
    return config, tensors


def common_scaling(model: SkilledModel) -> tuple[float, bool, float] | None:
    """Return scale, rsLoRA and dropout of the skills, or None if they differ between layers."""
    skills = [layer.inventory for layer in model.skilled_layers().values()]
    found = {
        (one.scale, one.rslora, one.dropout) if isinstance(one, LoRAInventory) else None
        for one in skills
    }
    common = found.pop()
    return common if not found and common and common[0] > 0 else None


def check_paths(model: SkilledModel) -> None:
    """Raise CheckpointError if tokens choose experts, or a layer has several paths."""
    require_plain(model)
    first = model.skilled_layers()
    layers = set(first.values())
    for path, module in model.backbone.named_modules(remove_duplicate=False):
        if module in layers and path not in first:
            raise CheckpointError(
                f"the layer '{path}' has several names in the model, and PEFT would adapt it under "
                "one only. Write a whole model instead (mttl merge-task)"
            )


def read_lora(folder: PeftFolder, *, scaled: bool = True) -> dict[str, LowRank]:
    """Return the weight changes of a LoRA adapter by path of the layer, by default with its scale.

    The scale is ``lora_alpha / r``, or ``lora_alpha / √r`` with `use_rslora`; single layers may
    have another alpha (`alpha_pattern`).

    Raises:
        CheckpointError: If it is not LoRA, changes more than the weights of linear layers,
            or is damaged.
    """
    config = folder.config
    used = [name for name in OTHER_MODELS if config.get(name)]
    if config.get("bias", "none") != "none":
        used.append("bias")
    start = config.get("init_lora_weights")
    problem = ""
    if config.get("peft_type") != "LORA":
        problem = f"is a {config.get('peft_type')} adapter, not LORA"
    elif used:
        problem = f"uses {', '.join(used)}, which is more than a low-rank change of weights"
    elif isinstance(start, str) and start.lower().startswith(OTHER_BASES):
        problem = (
            f"started from init_lora_weights '{start}', which changes the base model; convert it "
            "with PEFT (path_initial_model_for_weight_conversion)"
        )
    if problem:
        raise CheckpointError(f"'{folder.path}' {problem}")
    return {
        path: _factors(folder, path, tensors[DOWN], tensors[UP], scaled)
        for path, tensors in by_layer(folder, (DOWN, UP)).items()
    }


def common_settings(folders: Sequence[PeftFolder]) -> dict[str, Any] | None:
    """Return ``alpha``, ``rslora`` and ``dropout`` of the adapters.

    Returns None if adapters, or layers of one, differ in alpha, rank, rsLoRA or dropout.
    """
    configs = [folder.config for folder in folders]
    if any(one.get(name) for one in configs for name in ("alpha_pattern", "rank_pattern")):
        return None
    names = ("lora_alpha", "r", "use_rslora", "lora_dropout")
    found = [tuple(one.get(name) or 0 for name in names) for one in configs]
    alpha, rank, rslora, dropout = found[0]
    tensors = (pair for folder in folders for pair in folder.tensors.items())
    ranks = {tensor.shape[:1] for name, tensor in tensors if name.endswith(DOWN)}
    identical = all(other == found[0] for other in found) and ranks == {(rank,)}
    if not (identical and alpha > 0 and 0 <= dropout < 1):
        return None
    return {"alpha": float(alpha), "rslora": bool(rslora), "dropout": float(dropout)}


def _factors(folder: PeftFolder, path: str, down: Tensor, up: Tensor, scaled: bool) -> LowRank:
    config = folder.config
    rank = down.shape[0]
    if (down.ndim, up.ndim) != (2, 2) or not rank or rank != up.shape[1]:
        raise CheckpointError(
            f"'{folder.path}': the factors of '{path}' have shapes {tuple(down.shape)} and "
            f"{tuple(up.shape)}; a linear layer needs (r, I) and (O, r)"
        )
    patterns = config.get("alpha_pattern") or {}
    place = f"'{folder.path}': lora_alpha or alpha_pattern"
    with raised_as(CheckpointError, place, AttributeError, TypeError, re.error):
        found = (a for pattern, a in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path))
        alpha: Any = next(found, config.get("lora_alpha"))
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    return LowRank(down.t().float(), (scale if scaled else 1) * up.float())
