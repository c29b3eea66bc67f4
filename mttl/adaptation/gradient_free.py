"""LoraHub: one coefficient per skill, found without gradients from a few examples."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor

from mttl.adaptation.evolution import evolve
from mttl.adaptation.fine_tune import score_batches
from mttl.checkpoints.checkpoint_file import not_finite
from mttl.routing.task.coefficients import CoefficientRouter
from mttl.training.text_to_text import Prediction, TextToTextModule

# As in LoraHub's code: of the mean absolute coefficient, and of each.
PENALTY, BOUND = 0.05, 1.5


@torch.no_grad()
def compose(
    module: TextToTextModule,
    training: Iterable[Mapping[str, Any]],
    development: Iterable[Mapping[str, Any]],
    *,
    n_evaluations: int,
    precision: Precision | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[int, float, list[Prediction]]:
    """Look for the coefficients of the smallest loss on training rows, the same in all layers.

    They start at 0, the bare backbone, and lie between -1.5 and 1.5; the loss has 0.05 times their
    mean absolute value added. LoraHub's release differs: it takes Nevergrad's NGOpt instead of
    CMA-ES, and divides the sum of the mean losses of its batches by the number of examples, so that
    the penalty weighs more there. With the mixing ``"factors"`` both factors of the skills are
    summed by them, as LoraHub does; with the others, their changes.

    Returns:
        How many were tried at most, the score of what was found, and its answers.

    References:
        Huang, Liu, Lin, Pang, Du and Lin, *LoraHub: Efficient Cross-Task Generalization via Dynamic
        LoRA Composition*, COLM 2024, arXiv:2307.13269.
    """
    precision = precision or Precision()
    router = module.model.router
    assert isinstance(router, CoefficientRouter)
    batches = [move_data_to_device(batch, module.device) for batch in training]
    module.eval()

    def objective(coefficients: Tensor) -> float:
        router.rows.copy_(coefficients.expand_as(router.rows))
        total, count = 0.0, 0
        for batch in batches:
            with precision.forward_context():
                losses, labels, _ = module.nll(batch)
            total += float(losses.sum())
            count += int((labels >= 0).sum())
        on_step()
        return total / max(count, 1) + PENALTY * float(coefficients.abs().mean())

    start = torch.zeros(router.n_skills)
    found, least = evolve(objective, start, n_evaluations=n_evaluations, bound=BOUND)
    if math.isinf(least):
        advice = "Check the run's skills, and trainer.precision"
        raise not_finite("the loss of all coefficients is not finite", n_evaluations, advice)
    router.rows.copy_(found.expand_as(router.rows))
    return n_evaluations, *score_batches(module, development, precision)
