"""The mean attention weights of fused skills by task and layer: the arrays of their heat maps."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Float
from torch import Tensor

from mttl.data.collate import TrainCollator, pad_id_of
from mttl.models.backbone import is_decoder_only
from mttl.skills.attention import AttendedInventory
from mttl.skills.skilled_model import SkilledModel
from mttl.training.text_to_text import TextToTextModule

# A task's mean over tokens hardly moves with more rows.
ROWS_PER_TASK = 16


def has_attention(model: SkilledModel) -> bool:
    """Tell whether attention aggregates the skills of a model."""
    layers = model.skilled_layers().values()
    return any(isinstance(layer.inventory, AttendedInventory) for layer in layers)


@torch.no_grad()
def attention_by_task(
    module: TextToTextModule, rows: Dataset, n_rows: int = ROWS_PER_TASK
) -> Float[np.ndarray, "G T K"]:
    """Return the mean attention to every skill, over the tokens of some rows of each task.

    Rows run one by one, so that no padding is counted. Layers of a group are averaged. At most
    ``n_rows`` of a task are taken, spread evenly; the module is left in evaluation mode.
    """
    module.eval()
    router = module.model.router
    pad_id = pad_id_of(module.tokenizer)
    collate = TrainCollator(pad_id, router.n_tasks, is_decoder_only(module.model.backbone))
    task_ids = np.array(rows["task_id"])
    sums = torch.zeros(router.n_groups, router.n_tasks, router.n_skills, dtype=torch.float64)
    for task_id in range(router.n_tasks):
        own = np.flatnonzero(task_ids == task_id)
        chosen = own[np.linspace(0, len(own) - 1, min(n_rows, len(own))).round().astype(int)]
        with _attended(module.model) as seen:
            for number in chosen:
                batch = collate([rows[int(number)]])
                module.nll({name: value.to(module.device) for name, value in batch.items()})
        for group, weights in seen.items():
            sums[group, task_id] = weights
    return (sums / sums.sum(-1, keepdim=True).clamp_min(1e-12)).float().numpy()


@contextmanager
def _attended(model: SkilledModel) -> Iterator[dict[int, Tensor]]:
    """Sum the attention of every group while the block runs."""
    seen: dict[int, Tensor] = {}
    handles = []
    for layer in model.skilled_layers().values():
        inventory, group = layer.inventory, layer.group
        if not isinstance(inventory, AttendedInventory):
            continue

        def add(module, inputs, weights: Tensor, group: int = group) -> None:
            total = weights.double().sum((0, 1)).cpu()
            seen[group] = seen[group] + total if group in seen else total

        handles.append(inventory.attention.register_forward_hook(add))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
