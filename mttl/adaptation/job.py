"""One adaptation job from its settings to its scores."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mttl.adaptation.adaptation_history import AdaptationHistory
from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.fine_tune import fine_tune, rank, score_batches
from mttl.adaptation.gradient_free import compose
from mttl.adaptation.modes import (
    adapted,
    count_trained,
    kept_state,
    require_rows,
    row_starts,
)
from mttl.adaptation.nearest_task import best_task
from mttl.config.schema import Config
from mttl.config.section import AS_TRAINED
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import PromptForm
from mttl.inference.task_options import wanted_options
from mttl.models.backbone import is_decoder_only
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.training.precision import precision_plugin
from mttl.training.task_embeddings import embed_tasks
from mttl.training.text_to_text import Prediction, TextToTextModule

# Few, so that trained tasks unlike the new one are given up early.
ROWS_AT_ONCE = 8


def run_job(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    job: FewShotJob,
    gym: Gym,
    config: Config,
    *,
    row: Float[Tensor, "1 _"] | None = None,
    tasks: Sequence[str] = (),
    score_test: bool = True,
    on_step: Callable[[], object] = lambda: None,
    keep: Callable[[FewShotResult, Mapping[str, Sequence[Prediction]], AdaptationHistory], object]
    | None = None,
    stay: bool = False,
) -> FewShotResult:
    """Adapt to one sample of one task, score, and leave the model as it was.

    Of several starts, the one that ends best on the development rows is kept, of equal ones the
    first; test rows are scored only for the best so far. PyTorch's random state is restored too.

    Args:
        model: The trained model.
        tokenizer: The tokenizer of its backbone.
        job: Task, sample and seed.
        gym: The rows of the task.
        config: Settings from `mttl.adaptation.settings.job_config`.
        row: Initial routing weights of the task, if they are known.
        tasks: Names of the trained tasks, for the result to name the nearest one.
        score_test: Whether the test rows are scored; else the test score is undefined.
        on_step: Called after every optimizer step.
        keep: Called with the result, the answers of every split, and the history, while the model
            is adapted.
        stay: Whether the model stays adapted.
    """
    mode = config.adapt.mode
    best: tuple[FewShotResult, Mapping[str, Sequence[Prediction]], AdaptationHistory] | None = None
    bring_back = None
    for init in row_starts(model.router, config.adapt):
        begun_as = None
        if init in AS_TRAINED:
            row = nearest_task(model, tokenizer, job, gym, config)
            begun_as = tasks[int(row)] if tasks else None
        with (
            seeded(job.seed, next(model.parameters()).device),
            adapted(model, mode, init=init, rows=row),
        ):
            module = task_module(model, tokenizer, {job.task: gym.metric(job.task)}, config)
            fitted = fit(module, job, gym, config, on_step=on_step)
            if best is None or rank(fitted.dev) > rank(best[0].dev):
                scored = score(module, job, config, fitted, begun_as, test=score_test)
                best = (*scored, fitted.history)
                if keep is not None or stay:
                    bring_back = kept_state(model, mode)
    assert best is not None  # there is at least one start
    if bring_back is not None:
        leave = kept_state(model, mode)
        try:
            bring_back()
            if keep is not None:
                keep(*best)
        finally:
            if not stay:
                leave()
    return best[0]


def task_module(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    metrics: Mapping[str, str],
    config: Config,
) -> TextToTextModule:
    """Return the module that trains and answers, on the model's device."""
    return TextToTextModule(
        *(model, tokenizer, metrics, config.optim, config.generation),
        max_output_length=config.data.max_output_length,
        loss=config.loss,
    ).to(next(model.parameters()).device)


@dataclass(frozen=True)
class Fitted:
    """The result of training on a job's rows.

    ``step`` is the step whose weights were kept; ``dev`` is NaN if nothing was trained; ``answers``
    are by split.
    """

    step: int
    dev: float
    answers: dict[str, Sequence[Prediction]]
    history: AdaptationHistory
    data: TextToTextDataModule


def fit(
    module: TextToTextModule,
    job: FewShotJob,
    gym: Gym,
    config: Config,
    *,
    on_step: Callable[[], object] = lambda: None,
) -> Fitted:
    """Train on a job's rows; the module keeps the weights that were best on development rows."""
    data = _rows_of(job, module, gym, config)
    embed_tasks(module.model, data)
    options = wanted_options(gym, [job.task], [job.sample], config.generation.mode)
    form = PromptForm.of(config.data)
    module.set_options(options, form, per_token=config.generation.per_token)
    if weights := config.adapt.option_weights:
        options = wanted_options(gym, [job.task], [job.sample], "rank")
        module.contrast(options, form, **weights)
    precision = precision_plugin(config.trainer.precision, module.device.type)
    history = AdaptationHistory(module.model.router, config.adapt.max_steps)
    if config.adapt.examples == 0:
        return Fitted(0, math.nan, {}, history, data)

    def stepped() -> None:
        history.note_step()
        on_step()

    if config.adapt.gradient_free:
        step, dev, answers = compose(
            module,
            data.train_dataloader(),
            data.evaluation_dataloader("dev"),
            n_evaluations=config.adapt.max_steps,
            precision=precision,
            on_step=on_step,
        )
    else:
        step, dev, answers = fine_tune(
            module,
            data.train_dataloader(),
            data.evaluation_dataloader("dev"),
            n_steps=config.adapt.max_steps,
            eval_every=config.adapt.eval_every,
            gradient_clip_val=config.adapt.gradient_clip_val,
            precision=precision,
            on_step=stepped,
            on_score=history.note_score,
        )
    return Fitted(step, dev, {"dev": answers}, history, data)


def score(
    module: TextToTextModule,
    job: FewShotJob,
    config: Config,
    fitted: Fitted,
    begun_as: str | None,
    *,
    test: bool,
) -> tuple[FewShotResult, dict[str, Sequence[Prediction]]]:
    """Return what a fitted job scored, and the answers of every split that was scored."""
    answers, found = dict(fitted.answers), math.nan
    if test:
        precision = precision_plugin(config.trainer.precision, module.device.type)
        loader = fitted.data.evaluation_dataloader("test")
        found, answers["test"] = score_batches(module, loader, precision)
    rows = answers.get("test", answers.get("dev", []))
    (metric,) = module.metric_names
    n_trained = count_trained(module.model)
    if config.adapt.gradient_free:
        n_trained = module.model.router.n_skills
    result = FewShotResult(
        **{"task": job.task, "sample": job.sample, "seed": job.seed},
        metric=metric,
        dev=fitted.dev,
        test=found,
        step=fitted.step,
        n_trained=0 if config.adapt.examples == 0 else n_trained,
        n_empty=sum(not row.prediction for row in rows),
        n_answers=len(rows),
        begun_as=begun_as,
    )
    return result, answers


def nearest_task(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    job: FewShotJob,
    gym: Gym,
    config: Config,
) -> Float[Tensor, "1 1"]:
    """Return the id of the trained task whose routing has the lowest loss on the rows of a job."""
    require_rows(model.router)
    module = task_module(model, tokenizer, {job.task: gym.metric(job.task)}, config)
    few = {"batch_size": min(ROWS_AT_ONCE, config.data.eval_batch_size)}
    parts = config.model_copy(update={"data": config.data.model_copy(update=few)})
    batches = _rows_of(job, module, gym, parts).train_dataloader()
    precision = precision_plugin(config.trainer.precision, module.device.type)
    return torch.tensor([[float(best_task(module, batches, precision))]])


def _rows_of(
    job: FewShotJob, module: TextToTextModule, gym: Gym, config: Config
) -> TextToTextDataModule:
    """Return the rows of a job, as the model reads them."""
    return TextToTextDataModule(
        gym,
        [job.task],
        module.tokenizer,
        config.data.model_copy(update={"samples": [job.sample]}),
        decoder_only=is_decoder_only(module.model.backbone),
        seed=job.seed,
        n_examples=config.adapt.examples,
    )


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from a seed inside a ``with`` block, and afterwards from where the caller was."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
