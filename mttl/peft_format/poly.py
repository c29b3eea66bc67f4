"""Conversion of a whole inventory to a checkpoint of PEFT's Poly, and back.

PEFT has a router in every layer; here layers of a group share routing weights. Tensors correspond:

| PEFT | here |
|---|---|
| ``poly_lora_A (H, K, I / H, r)`` | ``down (K, I, r)`` |
| ``poly_lora_B (H, K, r, O / H)`` | ``up (K, O, r)`` |
| ``poly_router.module_logits (T, H K)`` | ``logits (T, H, K)`` of the layer's group |

PEFT averages the factors (our ``mix: factors``) and scales by 1 / r.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mttl.io.errors import CheckpointError
from mttl.merging.fold import require_plain
from mttl.peft_format.peft_folder import CONFIG, PeftFolder, by_layer, of_base, task_type_of
from mttl.routing.task.c_poly import CPolyRouter
from mttl.routing.task.polytropon import PolytroponRouter
from mttl.routing.task.task_router import TaskRouter
from mttl.skills.skilled_model import SkilledModel
from mttl.skills.weights.lora import LoRAInventory

DOWN, UP, LOGITS = "poly_lora_A", "poly_lora_B", "poly_router.module_logits"
# Logit of a probability that is exactly 0 or 1 in single precision, also after division by the
# smallest sum that PEFT allows.
CERTAIN = 80.0


@dataclass(frozen=True)
class PolyLayer:
    """One layer of a Poly checkpoint, in the layout of this package."""

    down: Float[Tensor, "K I r"]
    up: Float[Tensor, "K O r"]
    logits: Float[Tensor, "T H K"]


def poly_checkpoint(
    model: SkilledModel, *, base: str | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and tensors of PEFT's Poly for a whole inventory.

    Both models are equivalent in evaluation mode, and with the default settings of Polytropon's
    router also in training. Other routers are written as logits of equal weights.

    Raises:
        CheckpointError: If the skills, their mixing, the router or a layer has no counterpart.
    """
    require_plain(model)
    router, layers = model.router, model.skilled_layers()
    if router.reads_text:
        raise CheckpointError(f"{type(router).__name__} mixes skills by the text, but Poly by task")
    matrix = router.matrix().detach()
    one_each = bool(((matrix == 0) | (matrix == 1)).all())
    logits = poly_logits(router)
    tensors = {}
    rank = 0
    for path, layer in layers.items():
        skills: Any = layer.inventory
        problem = ""
        if not isinstance(skills, LoRAInventory):
            problem = f"'{path}' has {type(skills).__name__}; Poly needs LoRA"
        elif skills.mix != "factors" and not one_each:
            problem = (
                f"skills.mix is '{skills.mix}', but Poly averages the factors. Export single tasks "
                "(--task)"
            )
        elif type(layer.base) is not nn.Linear:
            problem = f"'{path}' is {type(layer.base).__name__}; Poly needs nn.Linear"
        if problem:
            raise CheckpointError(problem)
        down, up = (factor.detach() for factor in skills.columns())
        rank = down.shape[2]
        up = up * (skills.scale * rank)
        tensors[f"{path}.{DOWN}"] = _to_blocks(down, router.n_heads)
        tensors[f"{path}.{UP}"] = _to_blocks(up, router.n_heads).transpose(2, 3)
        tensors[f"{path}.{LOGITS}"] = logits[layer.group].flatten(1)
    config = of_base(base, task_type_of(model.backbone)) | {
        "peft_type": "POLY",
        "poly_type": "poly",
        "r": rank,
        "n_tasks": router.n_tasks,
        "n_skills": router.n_skills,
        "n_splits": router.n_heads,
        "target_modules": list(layers),
    }
    return config, tensors


@torch.no_grad()
def poly_logits(router: TaskRouter) -> Float[Tensor, "G T H K"]:
    """Return logits z for which σ(z), normalised to sum 1, is the router's matrix.

    Raises CheckpointError if its rows are not non-negative weights with sum 1.
    """
    if isinstance(router, PolytroponRouter) and router.normalise == "sum":
        logits = router.task_logits().detach()
        if router.straight_through:
            logits = torch.where(logits.sigmoid() > 0.5, CERTAIN, -CERTAIN).to(logits)
        if isinstance(router, CPolyRouter):
            logits = logits.masked_fill(router.allowed.unsqueeze(1) == 0, -CERTAIN)
        if router.shared_skill:
            logits = torch.cat([logits, torch.full_like(logits[..., :1], CERTAIN)], dim=-1)
        return logits.clone()
    matrix = router.matrix().detach()
    sums = matrix.sum(-1)
    if bool((matrix < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
        raise CheckpointError(
            f"the weights of {type(router).__name__} are not non-negative with sum 1, as Poly "
            "requires. Export single tasks (--task)"
        )
    # Only ratios matter, so the largest weight of a row gets the logit 0.
    share = matrix / (2 * matrix.amax(dim=-1, keepdim=True))
    return share.logit().clamp_min(-CERTAIN)


def read_poly(folder: PeftFolder) -> dict[str, PolyLayer]:
    """Return the layers of a Poly checkpoint by path; CheckpointError if it is inconsistent."""
    config = folder.config
    if config.get("peft_type") != "POLY":
        raise CheckpointError(f"'{folder.path}' is a {config.get('peft_type')} adapter, not POLY")
    names = "n_tasks", "n_splits", "n_skills", "r"
    n_tasks, n_heads, n_skills, rank = (config.get(name, 0) for name in names)
    layers = {}
    for path, tensors in by_layer(folder, (DOWN, UP, LOGITS)).items():
        down, up, logits = tensors[DOWN], tensors[UP], tensors[LOGITS]
        n_in, n_out = down.shape[2:3], up.shape[3:4]
        if (
            down.shape != (n_heads, n_skills, *n_in, rank)
            or up.shape != (n_heads, n_skills, rank, *n_out)
            or logits.shape != (n_tasks, n_heads * n_skills)
        ):
            raise CheckpointError(
                f"'{folder.path}': the tensors of '{path}' do not fit its {CONFIG}: "
                f"{tuple(down.shape)}, {tuple(up.shape)}, {tuple(logits.shape)} for "
                f"{n_tasks} tasks, {n_heads} splits, {n_skills} skills and rank {rank}"
            )
        logits = logits.unflatten(1, (n_heads, n_skills))
        layers[path] = PolyLayer(_from_blocks(down), _from_blocks(up.mT), logits)
    return layers


def _to_blocks(
    stack: Float[Tensor, "K features r"], n_heads: int
) -> Float[Tensor, "H K features_per_head r"]:
    return stack.unflatten(1, (n_heads, -1)).transpose(0, 1)


def _from_blocks(blocks: Float[Tensor, "H K features_per_head r"]) -> Float[Tensor, "K features r"]:
    return blocks.transpose(0, 1).flatten(1, 2)
