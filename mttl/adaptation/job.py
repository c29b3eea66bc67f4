"""One adaptation job from its settings to its scores."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from lightning_fabric.plugins import Precision
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mttl.adaptation.adaptation_history import AdaptationHistory
from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.fine_tune import fine_tune, rank, score_batches
from mttl.adaptation.gradient_free import compose
from mttl.adaptation.modes import adapted, count_trained, kept_state, row_starts
from mttl.config.schema import Config
from mttl.config.section import AS_TRAINED
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import PromptForm
from mttl.inference.task_options import wanted_options
from mttl.io.errors import ConfigError
from mttl.models.backbone import is_decoder_only
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.training.precision import precision_plugin
from mttl.training.task_embeddings import embed_tasks
from mttl.training.text_to_text import Prediction, TextToTextModule

# Few, so that trained tasks unlike the new one are given up early.
ROWS_AT_ONCE = 8


class Outcome(NamedTuple):
    """What came of a job; ``answers`` are by split, and ``module`` is what gave them."""

    module: TextToTextModule
    result: FewShotResult
    answers: dict[str, Sequence[Prediction]]
    history: AdaptationHistory


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
    keep: Callable[[Outcome], object] | None = None,
    stay: bool = False,
) -> Outcome:
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
        keep: Called with the outcome while the model is adapted.
        stay: Whether the model stays adapted.
    """
    mode = config.adapt.mode
    module = job_module(model, tokenizer, job, gym, config)
    best, bring_back = None, None
    for init in row_starts(model.router, config.adapt):
        begun_as = None
        if init in AS_TRAINED:
            nearest = nearest_task(module, job, gym, config)
            row, begun_as = torch.tensor([[float(nearest)]]), tasks[nearest] if tasks else None
        with seeded(job.seed, module.device), adapted(model, mode, init=init, rows=row):
            last = best.result.dev if best is not None else None
            found = _fit_and_score(
                *(module, job, gym, config, begun_as),
                better_than=last,
                score_test=score_test,
                on_step=on_step,
            )
            if found is not None:
                best = found
                if keep is not None or stay:
                    bring_back = kept_state(model, mode)
    assert best is not None  # there is at least one start
    if bring_back is not None:
        leave = kept_state(model, mode)
        try:
            bring_back()
            if keep is not None:
                keep(best)
        finally:
            if not stay:
                leave()
    return best


def job_module(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    job: FewShotJob,
    gym: Gym,
    config: Config,
) -> TextToTextModule:
    """Return the module that trains and answers, on the model's device."""
    module = TextToTextModule(
        *(model, tokenizer, {job.task: gym.metric(job.task)}, config.optim, config.generation),
        max_output_length=config.data.max_output_length,
        loss=config.loss,
    ).to(next(model.parameters()).device)
    form, place = PromptForm.of(config.data), (gym, [job.task], [job.sample])
    ranked = wanted_options(*place, config.generation.mode)
    module.set_options(ranked, form, per_token=config.generation.per_token)
    if weights := config.adapt.option_weights:
        module.contrast(wanted_options(*place, "rank"), form, **weights)
    return module


def _fit_and_score(
    module: TextToTextModule,
    job: FewShotJob,
    gym: Gym,
    config: Config,
    begun_as: str | None,
    *,
    better_than: float | None,
    score_test: bool,
    on_step: Callable[[], object],
) -> Outcome | None:
    """Train on a job's rows and score, unless its development score is no better than another.

    The model keeps the weights that were best on the development rows.
    """
    adapt, data = config.adapt, _rows_of(module, job, gym, config)
    embed_tasks(module.model, data)
    precision = precision_plugin(config.trainer.precision, module.device.type)
    history = AdaptationHistory(module.model.router, adapt.max_steps)
    step, dev, test, n_trained = 0, math.nan, math.nan, count_trained(module.model)
    answers: dict[str, Sequence[Prediction]] = {}

    def stepped() -> None:
        history.note_step()
        on_step()

    if adapt.examples == 0:
        n_trained = 0
    elif adapt.gradient_free:
        n_trained = module.model.router.n_skills
        step, dev, answers["dev"] = compose(
            *(module, data.train_dataloader(), data.evaluation_dataloader("dev")),
            n_evaluations=adapt.max_steps,
            precision=precision,
            on_step=on_step,
        )
    else:
        step, dev, answers["dev"] = fine_tune(
            *(module, data.train_dataloader(), data.evaluation_dataloader("dev")),
            n_steps=adapt.max_steps,
            eval_every=adapt.eval_every,
            gradient_clip_val=adapt.gradient_clip_val,
            precision=precision,
            on_step=stepped,
            on_score=history.note_score,
        )
    if better_than is not None and rank(dev) <= rank(better_than):
        return None
    if score_test:
        test, answers["test"] = score_batches(module, data.evaluation_dataloader("test"), precision)
    rows = answers.get("test", answers.get("dev", []))
    result = FewShotResult(
        **vars(job),
        metric=module.metric_names[0],
        dev=dev,
        test=test,
        step=step,
        n_trained=n_trained,
        n_empty=sum(not row.prediction for row in rows),
        n_answers=len(rows),
        begun_as=begun_as,
    )
    return Outcome(module, result, answers, history)


def nearest_task(module: TextToTextModule, job: FewShotJob, gym: Gym, config: Config) -> int:
    """Return the id of the trained task whose routing has the lowest loss on the rows of a job."""
    known = module.model.router
    if not known.task_rows:
        raise ConfigError(
            "init 'nearest_task' and 'best_coefficients' begin as a trained task, and a "
            f"{type(known).__name__} keeps no rows of tasks; use 'mean' or 'coefficients'"
        )
    few = {"batch_size": min(ROWS_AT_ONCE, config.data.eval_batch_size)}
    parts = config.model_copy(update={"data": config.data.model_copy(update=few)})
    precision = precision_plugin(config.trainer.precision, module.device.type)
    return best_task(module, _rows_of(module, job, gym, parts).train_dataloader(), precision)


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


def _rows_of(
    module: TextToTextModule, job: FewShotJob, gym: Gym, config: Config
) -> TextToTextDataModule:
    """Return the rows of a job, as the model reads them."""
    return TextToTextDataModule(
        *(gym, [job.task], module.tokenizer),
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
