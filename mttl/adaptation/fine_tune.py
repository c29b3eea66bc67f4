"""Few-shot fine-tuning of an adapted model: a plain loop, small enough to run hundreds of times."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor

from mttl.metrics.crossfit import score_answers
from mttl.training.loss import global_mean
from mttl.training.text_to_text import Prediction, TextToTextModule, mean_score
from mttl.training.token_balance import adjust_biases, adjusted_biases, token_loads


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
        n_empty: Test answers that are empty; development answers where the test rows were not
            scored.
        n_answers: How many answers that is out of; None in results of earlier versions.
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
    n_answers: int | None = None

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
    precision: Precision | None = None,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[int, float, list[Prediction]]:
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
        precision: Of the arithmetic; see `mttl.training.precision`. Single by default.
        on_step: Called after every step.

    Returns:
        The step of the weights kept, their score, and their answers to the development rows.
    """
    precision = precision or Precision()
    best_step, (best, answers) = 0, score_batches(module, development, precision)
    trained = [value for value in module.model.parameters() if value.requires_grad]
    if not trained:
        return best_step, best, answers
    # Biases that balance experts decide with the weights who is chosen.
    state = [*trained, *adjusted_biases(module.model)]
    kept = [value.detach().clone() for value in state]
    # Scaled gradients have to be read before the step, which fused kernels do within it.
    scaled = getattr(precision, "scaler", None) is not None
    optimizer = module.optimization.optimizer(module.model, fused=not scaled)
    scheduler = module.optimization.scheduler(optimizer, n_steps)
    batches = _endless(training)
    for step in range(1, n_steps + 1):
        module.train()
        batch = move_data_to_device(next(batches), module.device)
        with precision.forward_context():
            losses, labels, routing = module.nll(batch, module.label_smoothing)
            prior = module.model.router.prior_loss().to(losses.device)
        optimizer.zero_grad()
        loss = global_mean(losses, labels) + prior + sum(routing.losses.values())
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
            found, rows = score_batches(module, development, precision)
            # An undefined score is worse than any other.
            if _rank(found) > _rank(best):
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
    """Answer every row and return the score by the module's one metric, and the answers.

    Args:
        module: The model; left in evaluation mode.
        batches: Evaluation batches of one task.
        precision: Of the arithmetic; single by default.
    """
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


def interval(
    scores: Mapping[str, Sequence[Sequence[float]]], *, level: float = 0.95, n_draws: int = 10_000
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over tasks, on two levels.

    The samples of each task are drawn again with replacement, and within every sample drawn its
    seeds: seeds share their rows, so they count as repetitions of a sample and not as samples. The
    tasks stay, so the interval is about these tasks and not about tasks in general. An undefined
    score counts as 0, as in the mean.

    Args:
        scores: Of every task a list per sample, which holds the scores of its seeds.
        level: Probability that the interval covers.
        n_draws: Bootstrap draws.

    Raises:
        ValueError: If a task has fewer than two samples: how samples differ is unknown then.
    """
    few = [task for task, samples in scores.items() if len(samples) < 2]
    if few or not scores:
        raise ValueError(f"scores: every task must have two samples; fewer: {', '.join(few)}")
    generator = torch.Generator().manual_seed(0)
    means = torch.zeros(n_draws, dtype=torch.float64)
    for samples in scores.values():
        means += _draw_means(samples, n_draws, generator)
    means /= len(scores)
    low, high = torch.quantile(
        means, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    ).tolist()
    return low, high


def _draw_means(
    samples: Sequence[Sequence[float]], n_draws: int, generator: torch.Generator
) -> Tensor:
    """Return means of samples drawn with replacement, and of seeds drawn within them."""
    counts = torch.tensor([len(seeds) for seeds in samples])
    longest = int(counts.max())
    table = torch.tensor(
        [[*seeds, *[0.0] * (longest - len(seeds))] for seeds in samples], dtype=torch.float64
    ).nan_to_num(0.0)
    drawn = torch.randint(len(samples), (n_draws, len(samples), 1), generator=generator)
    lengths = counts[drawn]
    places = torch.rand(n_draws, len(samples), longest, generator=generator) * lengths
    # A sample of fewer seeds draws as many as it has.
    counted = torch.arange(longest) < lengths
    values = table[drawn, places.long()] * counted
    return values.sum((1, 2)) / counted.sum((1, 2))


def comparable_tasks(
    scores: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> list[str]:
    """Return the tasks whose gain is defined: those with a mean reference above 0.

    Args:
        scores: Scores of every task.
        reference: Those of what they are compared with.
    """
    return [task for task in scores if task in reference and float(mean_score(reference[task])) > 0]


def average_relative_gain(
    scores: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> float:
    """Return the mean over tasks of ``(m - m_reference) / m_reference``, m the mean score.

    Tasks whose reference is near zero dominate it, so look at plain means too. A task that the
    reference lacks, or does not score above 0 on (as a correlation may), is left out.

    Args:
        scores: Scores of every task.
        reference: Those of what they are compared with, such as direct fine-tuning.

    Returns:
        The gain as a fraction; NaN where no task can be compared.

    References:
        Ye, Lin and Ren, arXiv:2104.08835, section 5.
    """
    tasks = comparable_tasks(scores, reference)
    if not tasks:
        return math.nan
    pairs = [(float(mean_score(scores[x])), float(mean_score(reference[x]))) for x in tasks]
    return sum((ours - theirs) / theirs for ours, theirs in pairs) / len(tasks)


def _endless(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    while True:
        yield from batches


def _rank(score: float) -> float:
    return -math.inf if math.isnan(score) else score
