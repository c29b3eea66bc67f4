"""One adaptation job from its settings to its scores."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mttl.adaptation.best_row import best_task
from mttl.adaptation.course import Course
from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.fine_tune import fine_tune, score_batches
from mttl.adaptation.gradient_free import compose
from mttl.adaptation.modes import adapted, count_trained, require_rows, row_start
from mttl.config.schema import Config
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import PromptForm
from mttl.gym.folder import Gym
from mttl.models.backbone import is_decoder_only
from mttl.ranking.task_options import wanted_options
from mttl.skills.skilled_model import SkilledModel
from mttl.training.precision import precision_plugin
from mttl.training.shown_tasks import show_tasks
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
    keep: Callable[[FewShotResult, Mapping[str, Sequence[Prediction]], Course], object]
    | None = None,
) -> FewShotResult:
    """Adapt to one sample of one task, score, and leave the model as it was.

    The random state of PyTorch is left as it was too.

    Args:
        model: The trained model.
        tokenizer: Of its backbone.
        job: Task, sample and seed.
        gym: Where the rows are.
        config: Made by `mttl.adaptation.settings.job_config`.
        row: What the routing of the task starts at, where it is known.
        tasks: Names of the trained tasks, for the result to say which one the new one began as.
        score_test: Read and answer the test rows; else the test score is undefined.
        on_step: Called after every optimizer step.
        keep: Called with the result, the answers of every split, and how it came about, while the
            model is adapted.
    """
    init, begun_as = row_start(model.router, config.adapt), None
    if init == "best_row":
        row = best_row(model, tokenizer, job, gym, config)
        begun_as = tasks[int(row)] if tasks else None
    with (
        seeded(job.seed, next(model.parameters()).device),
        adapted(model, config.adapt.mode, init=init, rows=row),
    ):
        module = task_module(model, tokenizer, {job.task: gym.metric(job.task)}, config)
        done = fit(
            *(module, job, gym, config),
            begun_as=begun_as,
            score_test=score_test,
            on_step=on_step,
        )
        if keep is not None:
            keep(*done)
        return done[0]


def task_module(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    metrics: Mapping[str, str],
    config: Config,
) -> TextToTextModule:
    """Return the module that trains and answers, on the model's device.

    Args:
        model: A model made ready by `mttl.adaptation.modes.apply_mode`.
        tokenizer: Of its backbone.
        metrics: The metric of the one task, by its name.
        config: As for `run_job`.
    """
    return TextToTextModule(
        *(model, tokenizer, metrics, config.optim, config.generation),
        max_output_length=config.data.max_output_length,
        loss=config.loss,
    ).to(next(model.parameters()).device)


def fit(
    module: TextToTextModule,
    job: FewShotJob,
    gym: Gym,
    config: Config,
    *,
    begun_as: str | None = None,
    score_test: bool,
    on_step: Callable[[], object] = lambda: None,
) -> tuple[FewShotResult, dict[str, Sequence[Prediction]], Course]:
    """Train on a job's rows and score; the module keeps the weights that were chosen.

    Args:
        module: Made by `task_module`.
        job: As for `run_job`, and so are the others.
        gym: Where the rows are.
        config: As for `run_job`.
        begun_as: The trained task whose row the new one begins with, for the result.
        score_test: Whether to score the test rows.
        on_step: Called after every optimizer step.

    Returns:
        What it scored, the answers of every split that was scored, and how it came about.
    """
    data = _rows_of(job, module, gym, config)
    show_tasks(module.model, data)
    options = wanted_options(gym, [job.task], [job.sample], config.generation.mode)
    form = PromptForm.of(config.data)
    module.offer(options, form, per_token=config.generation.per_token)
    if weights := config.adapt.option_weights:
        options = wanted_options(gym, [job.task], [job.sample], "rank")
        module.contrast(options, form, **weights)
    precision = precision_plugin(config.trainer.precision, module.device.type)
    step, dev = 0, math.nan
    course = Course(module.model.router, config.adapt.max_steps)

    def stepped() -> None:
        course.note_step()
        on_step()

    answers: dict[str, Sequence[Prediction]] = {}
    gradient_free = config.adapt.gradient_free and config.adapt.examples != 0
    if gradient_free:
        step, dev, answers["dev"] = compose(
            module,
            data.train_dataloader(),
            data.evaluation_dataloader("dev"),
            n_evaluations=config.adapt.max_steps,
            precision=precision,
            on_step=on_step,
        )
    elif config.adapt.examples != 0:
        step, dev, answers["dev"] = fine_tune(
            module,
            data.train_dataloader(),
            data.evaluation_dataloader("dev"),
            n_steps=config.adapt.max_steps,
            eval_every=config.adapt.eval_every,
            gradient_clip_val=config.adapt.gradient_clip_val,
            precision=precision,
            on_step=stepped,
            on_score=course.note_score,
        )
    test = math.nan
    if score_test:
        loader = data.evaluation_dataloader("test")
        test, answers["test"] = score_batches(module, loader, precision)
    rows = answers.get("test", answers.get("dev", []))
    (metric,) = module.metric_names
    result = FewShotResult(
        **{"task": job.task, "sample": job.sample, "seed": job.seed},
        metric=metric,
        dev=dev,
        test=test,
        step=step,
        n_trained=module.model.router.n_skills if gradient_free else count_trained(module.model),
        n_empty=sum(not row.prediction for row in rows),
        n_answers=len(rows),
        begun_as=begun_as,
    )
    return result, answers, course


def best_row(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    job: FewShotJob,
    gym: Gym,
    config: Config,
) -> Float[Tensor, "1 1"]:
    """Return the id of the trained task by whose routing the rows of a job cost least.

    Args:
        model: The trained model, before it is made ready for the new task.
        tokenizer: Of its backbone.
        job: Whose training rows.
        gym: Where they are.
        config: As for `run_job`.

    Raises:
        ConfigError: If the router keeps no rows of tasks.
    """
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
    """Draw from a seed inside a ``with`` block, and afterwards from where the caller was.

    Args:
        seed: Of PyTorch's generators, of the CPU and of the device.
        device: Where the model is.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
