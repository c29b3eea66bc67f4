"""Cosines between the gradients of tasks: negative ones show interference in shared skills.

References:
    Yu, Kumar, Gupta, Levine, Hausman and Finn, *Gradient Surgery for Multi-Task Learning*, NeurIPS
    2020, arXiv:2001.06782: tasks conflict where the cosine of their gradients is negative.
    Multi-head routing is explained by gradients that are better aligned: Caccia et al.,
    arXiv:2211.03831.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from rich.markup import escape

from mttl.commands.routing_report.read_routing import open_run
from mttl.data.collate import TrainCollator, pad_id_of
from mttl.io.errors import CheckpointError
from mttl.runtime.text_table import TextTable
from mttl.training.loss import global_mean

MOST_PAIRS = 5


def gradient_cosines(run: Path, n_rows: int) -> Float[np.ndarray, "T T"]:
    """Return the cosines between the gradients of all tasks, with respect to the skills.

    They are computed after training, in evaluation mode, on ``n_rows`` training rows of each task.
    All gradients are in memory at once: 4 bytes per task and parameter of the skills.
    """
    opened = open_run(run, "leave --gradients out", max_rows=n_rows)
    module, data = opened.module, opened.data
    inventories = [layer.inventory for layer in module.model.skilled_layers().values()]
    if not inventories:
        raise CheckpointError(
            f"'{run}' has no skills that tasks mix, only experts that tokens choose: leave "
            "--gradients out"
        )
    module.requires_grad_(False)
    # Parameters may be shared by layers.
    skills = list({id(v): v for own in inventories for v in own.parameters()}.values())
    for value in skills:
        value.requires_grad_(True)
    data.data = data.data.model_copy(update={"samples": data.data.samples[:1]})
    rows, n_tasks = data.train_rows, len(module.tasks)
    collate = TrainCollator(pad_id_of(data.tokenizer), n_tasks, data.decoder_only)
    task_ids, directions = np.array(rows["task_id"]), []
    for task in range(n_tasks):
        batch = collate([rows[int(number)] for number in np.flatnonzero(task_ids == task)[:n_rows]])
        losses, labels, _ = module.nll({k: v.to(module.device) for k, v in batch.items()})
        found = torch.autograd.grad(global_mean(losses, labels), skills, materialize_grads=True)
        flat = torch.cat([own.flatten() for own in found]).float()
        directions.append((flat / flat.norm().clamp_min(1e-12)).cpu())
    stacked = torch.stack(directions)
    return (stacked @ stacked.T).numpy()


def gradient_table(
    cosines: Float[np.ndarray, "T T"], tasks: Sequence[str], categories: Sequence[str]
) -> TextTable:
    """Return how aligned tasks are, in all, within and between categories, and who conflicts."""
    one, other = np.triu_indices(len(tasks), 1)
    values, names = cosines[one, other], np.array(categories)
    within = names[one] == names[other]
    table = TextTable("Cosines of the gradients of tasks").words("pairs of tasks")
    table.numbers("mean", "below 0")
    for name, chosen in (
        ("all", np.ones_like(within)),
        ("of one category", within),
        ("of two categories", ~within),
    ):
        if chosen.any():
            table.add(name, float(values[chosen].mean()), f"{(values[chosen] < 0).mean():.0%}")
    worst = np.argsort(values, kind="stable")[:MOST_PAIRS]
    pairs = [(tasks[int(one[pair])], tasks[int(other[pair])], values[pair]) for pair in worst]
    shown = (f"{first} and {second} {value:.2f}" for first, second, value in pairs)
    table.caption = f"Lowest cosines: {escape(', '.join(shown))}"
    return table
