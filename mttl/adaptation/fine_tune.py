"""Few-shot fine-tuning of an adapted model: a plain loop, small enough to run hundreds of times."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device

from mttl.checkpoints.run_callbacks import ADAPTATION, check_weights, not_finite
from mttl.metrics.crossfit import score_answers
from mttl.routing.task.task_router import TaskRouter
from mttl.training.loss import global_mean
from mttl.training.monitors import routing_weights, write_arrays
from mttl.training.optim import build_optimizer, build_schedule
from mttl.training.text_to_text import Prediction, TextToTextModule
from mttl.training.token_balance import adjust_biases, token_loads, trained_biases

N_RECORDS = 20


class AdaptationHistory:
    """Records the routing weights of a new task from time to time, and at every score.

    ``rows`` (as of `routing_weights`) and ``scores`` (on development rows) are by step.
    """

    def __init__(self, router: TaskRouter, n_steps: int) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.scores: dict[int, float] = {}
        self._router, self._n_steps, self._step = router, n_steps, 0

    def note_step(self) -> None:
        """Count a step, and keep the routing if the last record was long ago."""
        self._step += 1
        if self._step % max(1, self._n_steps // N_RECORDS) == 0:
            self._note()

    def note_score(self, score: float) -> None:
        """Keep the score of the last step, and the routing that got it."""
        self.scores[self._step] = score
        self._note()

    def write(self, path: Path) -> None:
        """Write what was kept."""
        steps = sorted(self.rows)
        write_arrays(
            path,
            steps=np.array(steps, dtype=np.int64),
            weights=np.stack([self.rows[step] for step in steps]).astype(np.float16),
            score_steps=np.array(list(self.scores), dtype=np.int64),
            scores=np.nan_to_num(np.array(list(self.scores.values()), dtype=np.float64)),
        )

    def _note(self) -> None:
        with torch.no_grad():
            self.rows[self._step] = routing_weights(self._router)


def fine_tune(
    module: TextToTextModule,
    training: Iterable[Mapping[str, Any]],
    development: Iterable[Mapping[str, Any]],
    *,
    n_steps: int,
    eval_every: int,
    gradient_clip_val: float | None = None,
    precision: Precision | None = None,
    on_step: Callable[[], object] = lambda: None,
    on_score: Callable[[float], object] = lambda score: None,
) -> tuple[int, float, list[Prediction]]:
    """Train what requires gradients and keep the weights that are best on development rows.

    The weights before the first step count too, so training never lowers that score. Copies of the
    best weights are kept in memory, of the trained tensors only. Training batches are repeated. The
    last step is scored too. ``on_score`` gets every score, that before the first step included.

    Returns:
        The step of the weights kept, their score, and their answers to the development rows.
    """
    precision = precision or Precision()
    best_step, (best, answers) = 0, score_batches(module, development, precision)
    on_score(best)
    trained = [value for value in module.model.parameters() if value.requires_grad]
    if not trained:
        return best_step, best, answers
    # Biases that balance experts decide with the weights who is chosen.
    state = [*trained, *(bias.value for bias in trained_biases(module.model) if bias)]
    kept = [value.detach().clone() for value in state]
    # Scaled gradients have to be read before the step, which fused kernels do within it.
    scaled = getattr(precision, "scaler", None) is not None
    optimizer = build_optimizer(module.optim, module.model, fused=not scaled)
    scheduler = build_schedule(module.optim, optimizer, n_steps)
    batches = chain.from_iterable(repeat(training))
    finite = torch.tensor(True, device=module.device)  # read where scores are, not in every step
    for step in range(1, n_steps + 1):
        module.train()
        batch = move_data_to_device(next(batches), module.device)
        with precision.forward_context():
            losses, labels, routing = module.training_losses(batch)
            prior = module.model.router.prior_loss().to(losses.device)
        optimizer.zero_grad()
        loss = global_mean(losses, labels) + prior + sum(routing.losses.values())
        finite &= torch.isfinite(loss.detach())
        precision.backward(loss, module)
        if gradient_clip_val is not None:
            precision.unscale_gradients(optimizer)
            torch.nn.utils.clip_grad_norm_(trained, gradient_clip_val)
        precision.optimizer_step(optimizer)
        scheduler.step()
        if routing.records:
            adjust_biases(module.model, token_loads(module.model, routing.records))
        on_step()
        if step % eval_every == 0 or step == n_steps:
            if not (finite and module.is_finite_on(batch, precision)):
                raise not_finite("the loss is not finite", step, ADAPTATION)
            check_weights(module, step, ADAPTATION)
            found, rows = score_batches(module, development, precision)
            on_score(found)
            if rank(found) > rank(best):
                best_step, best, answers = step, found, rows
                kept = [value.detach().clone() for value in state]
    with torch.no_grad():
        for value, saved in zip(state, kept, strict=True):
            value.copy_(saved)
    return best_step, best, answers


def score_batches(
    module: TextToTextModule,
    batches: Iterable[Mapping[str, Any]],
    precision: Precision | None = None,
) -> tuple[float, list[Prediction]]:
    """Answer every row and return the score by the module's one metric, and the answers."""
    module.eval()
    rows: list[Prediction] = []
    for batch in batches:
        with (precision or Precision()).forward_context():
            rows += module.predict(move_data_to_device(batch, module.device))
    rows.sort(key=lambda row: row.row)
    (metric,) = module.metric_names
    value = score_answers(
        metric, [row.prediction for row in rows], [row.references for row in rows]
    )
    return value, rows


def rank(score: float) -> float:
    """Return what orders scores: an undefined one is worse than any other."""
    return -math.inf if math.isnan(score) else score


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
