"""Which trained task a new one begins as: the one whose routing explains its rows best."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device

from mttl.training.text_to_text import TextToTextModule


@torch.no_grad()
def best_task(
    module: TextToTextModule,
    batches: Iterable[Mapping[str, Any]],
    precision: Precision | None = None,
) -> int:
    r"""Return the trained task whose routing weights have the lowest loss on a new task.

    .. math:: \arg\min_t \; -\sum_{(x, y)} \log p(y \mid x, w_t)

    with the mixing weights :math:`w_t` of trained task t. Losses are not negative, so a task is
    dropped as soon as its loss on some of the rows exceeds the lowest loss on all of them.

    References:
        One source task to start from, there the one with the most similar prompt: Vu, Lester,
        Constant, Al-Rfou and Cer, *SPoT: Better Frozen Model Adaptation through Soft Prompt
        Transfer*, ACL 2022, arXiv:2110.07904. To choose it by the loss is ours.
    """
    first, *others = (move_data_to_device(batch, module.device) for batch in batches)

    def cost(task: int, batch: Mapping[str, Any]) -> float:
        routed = {**batch, "task_ids": torch.full_like(batch["task_ids"], task)}
        with (precision or Precision()).forward_context():
            of_tokens, *_ = module.nll(routed)
        return of_tokens.sum().item()

    training = module.training
    module.eval()
    costs = [cost(task, first) for task in range(module.model.router.n_tasks)]
    best, least = 0, math.inf
    for task in sorted(range(len(costs)), key=costs.__getitem__):  # those that promise most first
        total = costs[task]
        for batch in others:
            if total > least:
                break
            total += cost(task, batch)
        if total < least:
            best, least = task, total
    module.train(training)
    return best
