"""Few-shot fine-tuning of an adapted model: a plain loop, small enough to run hundreds of times."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from lightning_fabric.utilities import move_data_to_device

from mttl.tasks.metrics import score_answers
from mttl.training.loss import global_mean
from mttl.training.text_to_text import Prediction, TextToTextModule, mean_score


@dataclass(frozen=True)
class FewShotJob:
    """One adaptation: a task, one of its few-shot samples, and a seed."""

    task: str
    sample: int
    seed: int


@dataclass(frozen=True)
class FewShotResult:
    """What one job scored.

    Attributes:
        task: The new task.
        sample: Its few-shot sample.
        seed: Of noise and order.
        metric: Name of the metric.
        dev: Score on the development rows, by which the weights were chosen.
        test: Score on the test rows; undefined (NaN) where they were not scored.
        step: The step whose weights were kept; 0 is before training.
        n_trained: Parameters that were trained.
        n_empty: Test answers that are empty.
    """

    task: str
    sample: int
    seed: int
    metric: str
    dev: float
    test: float
    step: int
    n_trained: int
    n_empty: int

    @property
    def job(self) -> FewShotJob:
        """The job it belongs to."""
        return FewShotJob(self.task, self.sample, self.seed)

    def row(self) -> dict[str, Any]:
        """Return what `results.jsonl` holds; an undefined score is null."""
        values = asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in values.items()
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read back what `row` returned."""
        scores = {name: math.nan if row[name] is None else row[name] for name in ("dev", "test")}
        return cls(**{**row, **scores})


def fine_tune(
    module: TextToTextModule,
    training: Iterable[Mapping[str, Any]],
    development: Iterable[Mapping[str, Any]],
    *,
    n_steps: int,
    eval_every: int,
    gradient_clip_val: float | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[int, float]:
    """Train what requires gradients and keep the weights that are best on development rows.

    The weights before the first step count too, so training never makes that score worse. Copies
    of the best weights are kept in memory, of the trained tensors only.

    Args:
        module: The adapted model with the optimization and the metric of its one task.
        training: Training batches; begun again when they end.
        development: Development batches.
        n_steps: Optimizer steps.
        eval_every: Steps between two scores; the last step is scored too.
        gradient_clip_val: Largest norm of the gradients.
        on_step: Called after every step.

    Returns:
        The step of the weights kept, and their score.
    """
    best_step, best = 0, score_batches(module, development)[0]
    trained = [value for value in module.model.parameters() if value.requires_grad]
    if not trained:
        return best_step, best
    kept = [value.detach().clone() for value in trained]
    optimizer = module.optimization.optimizer(module.model)
    scheduler = module.optimization.scheduler(optimizer, n_steps)
    batches = _endless(training)
    for step in range(1, n_steps + 1):
        module.train()
        batch = move_data_to_device(next(batches), module.device)
        losses, labels, owed = module.nll(batch, module.label_smoothing)
        prior = module.model.router.prior_loss().to(losses.device)
        optimizer.zero_grad()
        (global_mean(losses, labels) + prior + sum(owed)).backward()
        if gradient_clip_val is not None:
            torch.nn.utils.clip_grad_norm_(trained, gradient_clip_val)
        optimizer.step()
        scheduler.step()
        on_step()
        if step % eval_every == 0 or step == n_steps:
            found = score_batches(module, development)[0]
            # An undefined score is worse than any other.
            if _rank(found) > _rank(best):
                best_step, best = step, found
                kept = [value.detach().clone() for value in trained]
    with torch.no_grad():
        for value, saved in zip(trained, kept, strict=True):
            value.copy_(saved)
    return best_step, best


def score_batches(
    module: TextToTextModule, batches: Iterable[Mapping[str, Any]]
) -> tuple[float, list[Prediction]]:
    """Answer every row and return the score by the module's one metric, and the answers.

    Args:
        module: The model; left in evaluation mode.
        batches: Evaluation batches of one task.
    """
    module.eval()
    rows: list[Prediction] = []
    for batch in batches:
        rows += module.predict(move_data_to_device(batch, module.device))
    rows.sort(key=lambda row: row.row)
    (metric,) = module.metric_names
    value = score_answers(
        metric, [row.prediction for row in rows], [row.references for row in rows]
    )
    return value, rows


def interval(
    scores: Mapping[str, Sequence[float]], *, level: float = 0.95, n_draws: int = 10_000
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over tasks.

    The repetitions (samples and seeds) of each task are drawn again with replacement; the tasks
    stay, so the interval is about these tasks and not about tasks in general.

    Args:
        scores: Scores of every task.
        level: Probability that the interval covers.
        n_draws: Bootstrap draws.
    """
    generator = torch.Generator().manual_seed(0)
    means = torch.zeros(n_draws, dtype=torch.float64)
    for values in scores.values():
        drawn = torch.randint(len(values), (n_draws, len(values)), generator=generator)
        means += torch.tensor(values, dtype=torch.float64).nan_to_num(0.0)[drawn].mean(1)
    means /= len(scores)
    low, high = torch.quantile(
        means, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    ).tolist()
    return low, high


def average_relative_gain(
    scores: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> float:
    """Return the mean over tasks of ``(m - m_reference) / m_reference``, m the mean score.

    Tasks whose reference is near zero dominate it, so look at plain means too. A task that the
    reference lacks, or scores 0 on, is left out.

    Args:
        scores: Scores of every task.
        reference: Those of what they are compared with, such as direct fine-tuning.

    Returns:
        The gain as a fraction; NaN where no task can be compared.

    References:
        Ye, Lin and Ren, arXiv:2104.08835, section 5.
    """
    gains = []
    for task, values in scores.items():
        direct = float(mean_score(reference[task])) if task in reference else 0.0
        if direct:
            gains.append((float(mean_score(values)) - direct) / direct)
    return sum(gains) / len(gains) if gains else math.nan


def _endless(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    while True:
        yield from batches


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score
