"""One task's mixture as a LoRA adapter of PEFT."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mttl.errors import CheckpointError
from mttl.merging.fold import is_transposed
from mttl.merging.low_rank_factors import LowRank, mixture
from mttl.skills.skilled_model import SkilledModel


def mixture_adapter(
    model: SkilledModel, mixing: Float[Tensor, "G H K"], rank: int | None = None
) -> dict[str, LowRank]:
    """Return one mixture as a pair of factors per layer, all of one rank.

    Args:
        model: Backbone, skills and router.
        mixing: Weight of every skill in every group.
        rank: The largest rank allowed; by default what an exact copy takes.

    Returns:
        The factors by path of the layer. Layers that need fewer columns are padded with zeros.

    Raises:
        CheckpointError: If a kind of skill is no change added to a weight, a kind without factors
            is given no rank, the rank is not positive, or a layer stands at several paths.
    """
    layers = model.skilled_layers()
    _check_paths(model)
    try:
        parts = {
            path: mixture(layer.inventory, mixing[layer.group], rank)
            for path, layer in layers.items()
        }
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"the skills cannot be exported as LoRA: {error}. If they change weights, a whole "
            "model can be written instead (scripts/merge_task.py)"
        ) from error
    width = max(part.rank for part in parts.values())
    return {path: part.padded(width) for path, part in parts.items()}


def lora_adapter(
    model: SkilledModel, adapter: Mapping[str, LowRank], *, base: str | None, task_type: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and tensors of PEFT for factors of every layer.

    PEFT multiplies the change by ``lora_alpha / r``. The skills' own scale is in the output-side
    factor already, so ``lora_alpha = r``.

    Args:
        model: Its layers are named.
        adapter: The factors by path.
        base: What the base model is called; none leaves it open.
        task_type: ``"SEQ_2_SEQ_LM"`` or ``"CAUSAL_LM"``.
    """
    rank = next(iter(adapter.values())).rank
    layers = model.skilled_layers()
    config = {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": any(is_transposed(layer.base) for layer in layers.values()),
        "init_lora_weights": True,
        "target_modules": list(adapter),  # whole paths: nothing else can match
    }
    tensors = {}
    for path, part in adapter.items():
        tensors[f"{path}.lora_A.weight"] = part.down.t()
        tensors[f"{path}.lora_B.weight"] = part.up
    return config, tensors


@torch.no_grad()
def skill_mixing(model: SkilledModel, skill: int) -> Float[Tensor, "G H K"]:
    """Return the mixing weights that use one skill alone.

    Raises:
        CheckpointError: If there is no such skill.
    """
    n_skills = model.router.n_skills
    if not 0 <= skill < n_skills:
        raise CheckpointError(f"there is no skill {skill}: they are numbered 0 … {n_skills - 1}")
    mixing = torch.zeros_like(model.router.matrix()[:, 0])
    mixing[..., skill] = 1
    return mixing


def _check_paths(model: SkilledModel) -> None:
    first = model.skilled_layers()
    layers = set(first.values())
    for path, module in model.backbone.named_modules(remove_duplicate=False):
        if module in layers and path not in first:
            raise CheckpointError(
                f"the layer '{path}' stands at another path too, and PEFT would change it at one "
                "of them only. A whole model can be written instead (scripts/merge_task.py)"
            )
