"""LoraHub: gradient-free search for one coefficient per skill."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor

from mttl.adaptation.fine_tune import SINGLE, score_batches
from mttl.checkpoints.run_callbacks import not_finite
from mttl.routing.task.fixed import CoefficientRouter
from mttl.training.text_to_text import Prediction, TextToTextModule

# As in LoraHub's code: weight of the L1 penalty, and bound of each coefficient.
PENALTY, BOUND = 0.05, 1.5


@torch.no_grad()
def compose(
    module: TextToTextModule,
    training: Iterable[Mapping[str, Any]],
    development: Iterable[Mapping[str, Any]],
    *,
    n_evaluations: int,
    precision: Precision = SINGLE,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[int, float, list[Prediction]]:
    """Search for coefficients with the lowest training loss, shared by all layers.

    They start at 0 (the bare backbone) and are bounded by ±1.5; the objective adds 0.05 times their
    mean absolute value. LoraHub's release differs: it uses Nevergrad's NGOpt instead of CMA-ES, and
    divides the summed batch losses by the number of examples, which gives the penalty more weight.
    With the mixing ``"factors"``, the skills' factors are combined as in LoraHub; otherwise their
    changes are. Returns the number of evaluations, the score of the result, and its answers.

    References:
        Huang, Liu, Lin, Pang, Du and Lin, *LoraHub: Efficient Cross-Task Generalization via Dynamic
        LoRA Composition*, COLM 2024, arXiv:2307.13269.
    """
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


def evolve(
    objective: Callable[[Float[Tensor, "n"]], float],
    start: Float[Tensor, "n"],
    *,
    n_evaluations: int,
    bound: float,
) -> tuple[Float[Tensor, "n"], float]:
    r"""Return the point with the lowest objective among those evaluated, and its value.

    CMA-ES with Hansen's default settings: each generation samples :math:`4 + 3 \ln n` points around
    a mean, which moves towards the better half; their spread determines the next covariance. Points
    are clipped to the bound. The start is evaluated first, and NaN is worse than any value. Random
    numbers come from PyTorch's generator.

    References:
        Hansen, *The CMA Evolution Strategy: A Tutorial*, 2016, arXiv:1604.00772.
    """
    n = len(start)
    size = 4 + int(3 * math.log(n)) if n > 1 else 4
    weights = math.log((size + 1) / 2) - torch.arange(1, size // 2 + 1).double().log()
    weights = weights / weights.sum()
    mass = float(1 / (weights**2).sum())  # variance-effective selection mass
    path_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
    step_rate = (mass + 2) / (n + mass + 5)
    one_rate = 2 / ((n + 1.3) ** 2 + mass)
    mu_rate = min(1 - one_rate, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
    damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + step_rate
    usual = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))  # length of a standard draw

    step, mean = 0.3, start.double().clamp(-bound, bound)
    covariance = torch.eye(n, dtype=torch.double)
    path, step_path = torch.zeros_like(mean), torch.zeros_like(mean)

    def value(point: Tensor) -> float:
        found = objective(point.to(start.dtype))
        return math.inf if math.isnan(found) else found

    best, least = mean, value(mean)
    asked, generation = 1, 0
    while asked < n_evaluations:
        generation += 1
        values, axes = torch.linalg.eigh(covariance)
        scales = values.clamp_min(1e-20).sqrt()
        draws = torch.randn(size, n, dtype=torch.double) * scales @ axes.t()
        points = (mean + step * draws).clamp(-bound, bound)[: n_evaluations - asked]
        found = [value(point) for point in points]
        asked += len(points)
        order = sorted(range(len(points)), key=found.__getitem__)
        if found[order[0]] < least:
            best, least = points[order[0]], found[order[0]]
        if len(points) < size:
            break  # a truncated generation is the last
        moves = (points[order[: len(weights)]] - mean) / step
        move = weights @ moves
        mean = mean + step * move
        whitened = axes @ ((axes.t() @ move) / scales)
        step_path = (1 - step_rate) * step_path + math.sqrt(
            step_rate * (2 - step_rate) * mass
        ) * whitened
        length = float(step_path.norm())
        settled = math.sqrt(1 - (1 - step_rate) ** (2 * generation))
        steady = length / settled < (1.4 + 2 / (n + 1)) * usual
        path = (1 - path_rate) * path
        if steady:
            path = path + math.sqrt(path_rate * (2 - path_rate) * mass) * move
        lost = 0.0 if steady else one_rate * path_rate * (2 - path_rate)
        covariance = (
            (1 - one_rate - mu_rate + lost) * covariance
            + one_rate * torch.outer(path, path)
            + mu_rate * (moves.t() * weights) @ moves
        )
        step *= math.exp(min(1.0, step_rate / damping * (length / usual - 1)))
    return best.to(start.dtype), least
