"""Task embeddings for routers: from descriptions, or from training rows."""

import numpy as np
import torch

from mttl.data.data_module import TextToTextDataModule
from mttl.data.encode import special_ids
from mttl.data.user_text import UserText
from mttl.io.errors import TaskError
from mttl.routing.task.task_router import PER_PASS
from mttl.skills.skilled_model import SkilledModel, pooled_text

# First training rows of each task that are embedded.
N_EXAMPLES = 16


def embed_tasks(model: SkilledModel, data: TextToTextDataModule) -> None:
    """Compute the task embeddings that the model's router requires, if any.

    Raises a `TaskError` if a task has no description, or no training row.
    """
    for name in model.router.seen:
        if name in PER_PASS:
            continue
        if name == "descriptions":
            described = data.gym.descriptions(data.tasks, "the router reads task descriptions")
            before, after = special_ids(data.tokenizer)
            encoded = UserText(data.tokenizer).encode(list(described.values()))
            texts = [[*before, *ids, *after] for ids in encoded]
        else:
            texts = _examples(data)
        device = next(model.parameters()).device
        rows = [pooled_text(model.backbone, torch.tensor([ids], device=device)) for ids in texts]
        model.router.show(name, torch.cat(rows).float())


def _examples(data: TextToTextDataModule) -> list[list[int]]:
    rows = data.train_rows
    task_ids = np.asarray(rows["task_id"][:])
    found = []
    for task_id, task in enumerate(data.tasks):
        chosen = np.flatnonzero(task_ids == task_id)[:N_EXAMPLES]
        if not len(chosen):
            raise TaskError(
                f"the router needs training examples of each task, but '{task}' has none; set "
                "adapt.examples above 0"
            )
        own = rows[chosen.tolist()]
        pairs = zip(own["input_ids"], own["labels"], strict=True)
        found.append([token for ids, labels in pairs for token in (*ids, *labels)])
    return found
