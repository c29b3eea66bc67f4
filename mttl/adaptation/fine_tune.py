"""Few-shot fine-tuning of an adapted model."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device
from torch.optim.lr_scheduler import LambdaLR

from mttl.checkpoints.run_callbacks import ADAPTATION, check_weights, not_finite
from mttl.metrics.crossfit import score_answers
from mttl.routing.task.task_router import TaskRouter
from mttl.training.monitors import as_rows, write_arrays
from mttl.training.optim import build_optimizer, schedule_factor
from mttl.training.packing_check import evaluating
from mttl.training.text_to_text import Prediction, TextToTextModule, answers_of
from mttl.training.token_balance import adjust_biases, token_loads, trained_biases

SINGLE = Precision()  # single precision, without scaling


class AdaptationHistory:
    """Records a new task's routing weights periodically and at every score.

    ``rows`` (see `as_rows`) and ``scores`` (on development rows) are by step.
    """

    def __init__(self, router: TaskRouter, n_steps: int) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.scores: dict[int, float] = {}
        self._router, self._n_steps, self._step = router, n_steps, 0

    def note_step(self) -> None:
        """Count a step, and record the routing after every twentieth of all steps."""
        self._step += 1
        if self._step % max(1, self._n_steps // 20) == 0:
            self._note()

    def note_score(self, score: float) -> None:
        """Record the score of the last step, with the routing."""
        self.scores[self._step] = score
        self._note()

    def write(self, path: Path) -> None:
        """Write the records."""
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
            self.rows[self._step] = as_rows(self._router.matrix())


def fine_tune(
    module: TextToTextModule,
    training: Iterable[Mapping[str, Any]],
    development: Iterable[Mapping[str, Any]],
    *,
    n_steps: int,
    eval_every: int,
    gradient_clip_val: float | None = None,
    precision: Precision = SINGLE,
    on_step: Callable[[], object] = lambda: None,
    on_score: Callable[[float], object] = lambda score: None,
) -> tuple[int, float, list[Prediction]]:
    """Train the parameters that require gradients; keep the best weights on development rows.

    Returns the step of these weights, their score and their answers. The initial weights are scored
    as well, so training never lowers the score. Copies of the best weights, of trained tensors
    only, are kept in memory. Training batches are repeated. The last step is also scored. Training
    stops at a score of 1, which no later step can exceed. ``on_score`` receives every score,
    including the initial one.
    """
    best_step, (best, answers) = 0, score_batches(module, development, precision)
    on_score(best)
    trained = [value for value in module.model.parameters() if value.requires_grad]
    if not trained:
        return best_step, best, answers
    # Load-balancing biases determine the choice of experts together with the weights.
    state = [*trained, *(bias.value for bias in trained_biases(module.model) if bias)]
    kept = [value.detach().clone() for value in state]
    # Gradients must be unscaled before the step, which fused kernels do within it.
    scaled = getattr(precision, "scaler", None) is not None
    optimizer = build_optimizer(module.optim, module.model, fused=not scaled)
    scheduler = LambdaLR(optimizer, schedule_factor(module.optim, n_steps))
    batches = chain.from_iterable(repeat(training))
    finite = torch.tensor(True, device=module.device)  # checked only when scoring
    for step in range(1, n_steps + 1):
        if best >= 1.0:
            break  # no later score is higher
        module.train()
        batch = move_data_to_device(next(batches), module.device)
        with precision.forward_context():
            loss, routing = module.whole_loss(batch)
        optimizer.zero_grad()
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
    module: TextToTextModule, batches: Iterable[Mapping[str, Any]], precision: Precision = SINGLE
) -> tuple[float, list[Prediction]]:
    """Return the score of all rows by the module's metric, and the answers."""
    module.eval()
    rows: list[Prediction] = []
    for batch in batches:
        with precision.forward_context():
            rows += module.predict(move_data_to_device(batch, module.device))
    rows.sort(key=lambda row: row.row)
    (metric,) = module.metric_names
    return score_answers(metric, *answers_of(rows)), rows


def rank(score: float) -> float:
    """Return a sort key for scores; undefined scores are lowest."""
    return -math.inf if math.isnan(score) else score


@torch.no_grad()
def best_task(
    module: TextToTextModule, batches: Iterable[Mapping[str, Any]], precision: Precision = SINGLE
) -> int:
    r"""Return the trained task whose routing weights have the lowest loss on a new task.

    .. math:: \arg\min_t \; -\sum_{(x, y)} \log p(y \mid x, w_t)

    with the mixing weights :math:`w_t` of trained task t. Losses are non-negative, so a task is
    dropped when its loss on some rows exceeds the lowest loss on all rows.

    References:
        Starting from one source task, selected by the similarity of prompts: Vu, Lester, Constant,
        Al-Rfou and Cer, *SPoT: Better Frozen Model Adaptation through Soft Prompt Transfer*, ACL
        2022, arXiv:2110.07904. Selection by loss is specific to this package.
    """
    first, *others = (move_data_to_device(batch, module.device) for batch in batches)

    def cost(task: int, batch: Mapping[str, Any]) -> float:
        routed = {**batch, "task_ids": torch.full_like(batch["task_ids"], task)}
        with precision.forward_context():
            of_tokens, *_ = module.nll(routed)
        return of_tokens.sum().item()

    best, least = 0, math.inf
    with evaluating(module):
        costs = [cost(task, first) for task in range(module.model.router.n_tasks)]
        for task in sorted(range(len(costs)), key=costs.__getitem__):  # most promising first
            total = costs[task]
            for batch in others:
                if total > least:
                    break
                total += cost(task, batch)
            if total < least:
                best, least = task, total
    return best
