"""One adaptation job from its settings to its scores."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from mttl.adaptation.few_shot import FewShotJob, FewShotResult
from mttl.adaptation.fine_tune import fine_tune, score_batches
from mttl.adaptation.modes import adapted
from mttl.config.section import AdaptMode
from mttl.data.data_module import TextToTextDataModule
from mttl.gym.folder import Gym
from mttl.models.backbone import is_decoder_only
from mttl.skills.skilled_model import SkilledModel
from mttl.training.optim import Optimization
from mttl.training.precision import precision_plugin
from mttl.training.text_to_text import TextToTextModule


@dataclass(frozen=True)
class FewShotSettings:
    """How new tasks are adapted to.

    Args:
        mode: What to train; see `mttl.adaptation.modes`.
        init: How new routing rows start: ``"mean"`` or ``"fresh"``.
        optimization: Optimizer, learning rates and schedule.
        label_smoothing: ε of the training loss.
        max_steps: Optimizer steps.
        eval_every: Steps between two scores on the development rows.
        batch_size: Training rows per step.
        eval_batch_size: Most rows per batch of scoring.
        gradient_clip_val: Largest norm of the gradients.
        num_beams: Beams of the search for an answer.
        length_penalty: Exponent of the length in a beam's score.
        precision: Of the arithmetic; see `mttl.training.precision`.
        max_rows: Read only so many rows of every file, spread evenly.
        max_eval_rows: The same for scoring alone.
        form: How rows become text, as in training: ``prefix``, ``descriptions``,
            ``max_input_length`` and ``max_output_length``.
    """

    mode: AdaptMode
    init: str
    optimization: Optimization
    label_smoothing: float
    max_steps: int
    eval_every: int
    batch_size: int
    eval_batch_size: int
    gradient_clip_val: float | None
    num_beams: int
    length_penalty: float
    precision: str
    max_rows: int | None
    max_eval_rows: int | None
    form: Mapping[str, Any]


def run_job(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    job: FewShotJob,
    gym: Gym,
    settings: FewShotSettings,
    *,
    score_test: bool = True,
    on_step: Callable[[], object] = lambda: None,
) -> FewShotResult:
    """Adapt to one sample of one task, score, and leave the model as it was.

    The random state of PyTorch is left as it was too.

    Args:
        model: The trained model.
        tokenizer: Of its backbone.
        job: Task, sample and seed.
        gym: Where the rows are.
        settings: How to adapt.
        score_test: Read and answer the test rows; else the test score is undefined.
        on_step: Called after every optimizer step.
    """
    with (
        seeded(job.seed, next(model.parameters()).device),
        adapted(model, settings.mode, init=settings.init),
    ):
        module = task_module(model, tokenizer, {job.task: gym.metric(job.task)}, settings)
        return fit(module, job, gym, settings, score_test=score_test, on_step=on_step)


def task_module(
    model: SkilledModel,
    tokenizer: PreTrainedTokenizerBase,
    metrics: Mapping[str, str],
    settings: FewShotSettings,
) -> TextToTextModule:
    """Return the module that trains and answers, on the model's device.

    Args:
        model: A model made ready by `mttl.adaptation.modes.apply_mode`.
        tokenizer: Of its backbone.
        metrics: The metric of the one task, by its name.
        settings: How to adapt.
    """
    return TextToTextModule(
        model,
        tokenizer,
        metrics,
        settings.optimization,
        label_smoothing=settings.label_smoothing,
        max_output_length=settings.form["max_output_length"],
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
    ).to(next(model.parameters()).device)


def fit(
    module: TextToTextModule,
    job: FewShotJob,
    gym: Gym,
    settings: FewShotSettings,
    *,
    score_test: bool,
    on_step: Callable[[], object] = lambda: None,
) -> FewShotResult:
    """Train on a job's rows and score; the module keeps the weights that were chosen.

    Args:
        module: Made by `task_module`.
        job: As for `run_job`, and so are the others.
        gym: Where the rows are.
        settings: How to adapt.
        score_test: Whether to score the test rows.
        on_step: Called after every optimizer step.
    """
    data = TextToTextDataModule(
        gym,
        [job.task],
        module.tokenizer,
        decoder_only=is_decoder_only(module.model.backbone),
        samples=[job.sample],
        batch_size=settings.batch_size,
        eval_batch_size=settings.eval_batch_size,
        max_rows=settings.max_rows,
        max_eval_rows=settings.max_eval_rows,
        seed=job.seed,
        **settings.form,
    )
    precision = precision_plugin(settings.precision, module.device.type)
    step, dev, rows = fine_tune(
        module,
        data.train_dataloader(),
        data.evaluation_dataloader("dev"),
        n_steps=settings.max_steps,
        eval_every=settings.eval_every,
        gradient_clip_val=settings.gradient_clip_val,
        precision=precision,
        on_step=on_step,
    )
    test = float("nan")
    if score_test:
        test, rows = score_batches(module, data.evaluation_dataloader("test"), precision)
    trained = (value for value in module.model.parameters() if value.requires_grad)
    (metric,) = module.metric_names
    return FewShotResult(
        **{"task": job.task, "sample": job.sample, "seed": job.seed},
        metric=metric,
        dev=dev,
        test=test,
        step=step,
        n_trained=sum(value.numel() for value in trained),
        n_empty=sum(not row.prediction for row in rows),
        n_answers=len(rows),
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
