"""LoRA adapters of PEFT as low-rank changes of a model's layers."""

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mttl.io.errors import CheckpointError
from mttl.merging.low_rank_factors import LowRank
from mttl.peft_format.peft_folder import PeftFolder, by_layer

DOWN, UP = "lora_A.weight", "lora_B.weight"
# Settings under which an adapter is more than a low-rank change of the base model's own weights.
OTHER_MODELS = (
    *("use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens", "layer_replication"),
    *("arrow_config", "monteclora_config", "kasa_config", "modules_to_save", "target_parameters"),
    *("trainable_token_indices", "lora_bias"),
)
# Initialisations that change the base weights; an adapter trained from one needs those.
OTHER_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
MOST_ALPHA = 1e6


def read_lora(folder: PeftFolder, *, scaled: bool = True) -> dict[str, LowRank]:
    """Return the weight changes of a LoRA adapter by path of the layer, by default with its scale.

    The scale is ``lora_alpha / r``, or ``lora_alpha / √r`` where `use_rslora` is set; single layers
    may have an alpha of their own (`alpha_pattern`).

    Raises:
        CheckpointError: If it is not LoRA, changes more than the weights of linear layers,
            or is damaged.
    """
    config = folder.config
    if config["peft_type"] != "LORA":
        raise CheckpointError(f"'{folder.path}' is a {config['peft_type']} adapter, not LORA")
    used = [name for name in OTHER_MODELS if config.get(name)]
    if config.get("bias", "none") != "none":
        used.append("bias")
    if used:
        raise CheckpointError(
            f"'{folder.path}' uses {', '.join(used)}: it is more than a low-rank change of weights"
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(OTHER_BASES):
        raise CheckpointError(
            f"'{folder.path}' began with init_lora_weights '{start}', which changes the base model "
            "itself; convert it with PEFT (path_initial_model_for_weight_conversion)"
        )
    return {
        path: _factors(folder, path, tensors[DOWN], tensors[UP], scaled)
        for path, tensors in by_layer(folder, (DOWN, UP)).items()
    }


def common_settings(folders: Sequence[PeftFolder]) -> dict[str, Any] | None:
    """Return what skills take over from adapters with identical settings, or None.

    Returns:
        ``alpha``, ``rslora`` and ``dropout`` of skills of the adapters' rank; None where adapters,
        or layers of one, differ in alpha, rank, rsLoRA or dropout.
    """
    configs = [folder.config for folder in folders]
    if any(one.get(name) for one in configs for name in ("alpha_pattern", "rank_pattern")):
        return None
    names = ("lora_alpha", "r", "use_rslora", "lora_dropout")
    found = [tuple(one.get(name) or 0 for name in names) for one in configs]
    alpha, rank, rslora, dropout = found[0]
    ranks = {
        tensor.shape[:1]
        for folder in folders
        for name, tensor in folder.tensors.items()
        if name.endswith(DOWN)
    }
    plain = type(alpha) in (int, float) and type(dropout) in (int, float) and rslora in (0, True)
    identical = all(other == found[0] for other in found) and ranks == {(rank,)}
    if not (plain and identical and 0 < alpha < MOST_ALPHA and 0 <= dropout < 1):
        return None
    return {"alpha": float(alpha), "rslora": bool(rslora), "dropout": float(dropout)}


def _factors(folder: PeftFolder, path: str, down: Tensor, up: Tensor, scaled: bool) -> LowRank:
    if (down.ndim, up.ndim) != (2, 2) or down.shape[0] != up.shape[1]:
        raise CheckpointError(
            f"'{folder.path}': the factors of '{path}' have shapes {tuple(down.shape)} and "
            f"{tuple(up.shape)}; those of a linear layer are (r, I) and (O, r)"
        )
    config = folder.config
    rank = down.shape[0]
    if rank < 1:
        raise CheckpointError(f"'{folder.path}': the factors of '{path}' have rank 0")
    patterns = config.get("alpha_pattern") or {}
    try:
        found = (a for pattern, a in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path))
        alpha: Any = next(found, config.get("lora_alpha"))
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    except (AttributeError, TypeError, re.error) as error:
        raise CheckpointError(f"'{folder.path}': lora_alpha or alpha_pattern: {error}") from error
    return LowRank(down.t().float(), (scale if scaled else 1) * up.float())
