"""Which trained task a new one begins as: the one whose routing explains its rows best."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor

from mttl.shapes import IGNORED
from mttl.training.text_to_text import TextToTextModule


@torch.no_grad()
def task_losses(
    module: TextToTextModule,
    batches: Iterable[Mapping[str, Any]],
    precision: Precision | None = None,
) -> Float[Tensor, "T"]:
    r"""Return what rows of a new task lose if they are routed as each trained task is.

    .. math:: L_t = -\frac{1}{N} \sum_{(x, y)} \log p(y \mid x, w_t)

    with the mixing weights :math:`w_t` of trained task t and N tokens of answers. Nothing is drawn
    and nothing changes.

    Args:
        module: The trained model, with its router of T tasks.
        batches: Rows of the new task.
        precision: Of the arithmetic; single by default.

    References:
        One source task to begin with, there the one whose prompt is most alike: Vu, Lester,
        Constant, Al-Rfou and Cer, *SPoT: Better Frozen Model Adaptation through Soft Prompt
        Transfer*, ACL 2022, arXiv:2110.07904. To choose it by the loss is ours.
    """
    training = module.training
    module.eval()
    losses, n_tokens = torch.zeros(module.model.router.n_tasks), 0
    for batch in batches:
        moved = move_data_to_device(batch, module.device)
        for task in range(len(losses)):
            routed = {**moved, "task_ids": torch.full_like(moved["task_ids"], task)}
            with (precision or Precision()).forward_context():
                of_tokens, labels, _ = module.nll(routed)
            losses[task] += of_tokens.sum().item()
        n_tokens += int(labels.ne(IGNORED).sum())
    module.train(training)
    return losses / max(n_tokens, 1)
