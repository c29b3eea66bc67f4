"""Run one adaptation job."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from lightning_fabric.plugins import MixedPrecision, Precision
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mttl.adaptation.fine_tune import AdaptationHistory, best_task, fine_tune, rank, score_batches
from mttl.adaptation.gradient_free import compose
from mttl.adaptation.modes import apply_mode, count_trained, kept_state, row_starts
from mttl.adaptation.plan import FewShotJob, FewShotResult
from mttl.assembly.build_heads import check_heads, new_heads
from mttl.config.data_schema import Data
from mttl.config.schema import Config
from mttl.config.section import AS_TRAINED
from mttl.data.data_module import TextToTextDataModule
from mttl.data.prompt_form import PromptForm
from mttl.heads.task_heads import TaskHeads
from mttl.inference.task_options import wanted_options
from mttl.io.errors import ConfigError
from mttl.metrics.crossfit import ignored_differences
from mttl.models.backbone import is_decoder_only, is_encoder
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.folder import Gym
from mttl.training.task_embeddings import embed_tasks
from mttl.training.text_to_text import Prediction, TextToTextModule, answers_of

_log = logging.getLogger(__name__)

CONTEXT = 1024  # default tokens of an input with examples
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def job_config(config: Config, form: Mapping[str, Any]) -> Config:
    """Return the configuration of jobs: rates of the section adapt, prompt form of the run."""
    adapt, data, precision = config.adapt, config.data, config.trainer.precision
    if precision not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision ({precision}) does not work in adaptation, whose updates are too "
            "small for half-precision weights; set -k trainer.precision to one of "
            f"{', '.join(PRECISIONS)}"
        )
    rates = {"backbone_lr": adapt.lr, "token_router_lr": adapt.lr, "schedule": "linear"}
    rates |= adapt.model_dump(include={"lr", "router_lr", "up_lr_ratio", "weight_decay", "warmup"})
    sizes = {"eval_batch_size", "max_rows", "max_eval_rows", "dir", "tasks", "partition", "metrics"}
    rows = Data(**data.model_dump(include=sizes), batch_size=adapt.batch_size, **form)
    return config.model_copy(update={"optim": config.optim.model_copy(update=rates), "data": rows})


def ranking_mode(config: Config) -> str:
    """Return the ranking mode for `wanted_options`."""
    return "rank" if config.adapt.option_weights else config.generation.mode


class Outcome(NamedTuple):
    """Outcome of a job.

    ``answers`` are by split, ``module`` generated them, and ``form`` is the form of its prompts.
    """

    module: TextToTextModule
    form: PromptForm
    result: FewShotResult
    answers: dict[str, Sequence[Prediction]]
    history: AdaptationHistory


class JobRun:
    """One job on a model.

    The configuration comes from `job_config`.
    """

    def __init__(
        self,
        model: SkilledModel,
        tokenizer: PreTrainedTokenizerBase,
        job: FewShotJob,
        gym: Gym,
        config: Config,
    ) -> None:
        self.job, self.gym, self.config = job, gym, config
        self.module = TextToTextModule(
            *(model, tokenizer, {job.task: gym.metric(job.task)}, config.optim, config.generation),
            max_output_length=config.data.max_output_length,
            loss=config.loss,
        ).to(next(model.parameters()).device)
        self.form, search = PromptForm.of(config.data), config.generation
        head = gym.head(job.task)
        self.heads = new_heads(model, head, config.heads, job.task)
        if head is not None:
            check_heads(config, {job.task: head})
            self.form = self.form.model_copy(update={"task_heads": {job.task: head}})
        if config.adapt.mode == "in_context":
            self.form = self._with_examples()
        form = self.form
        samples = [(job.task, [job.sample])]
        options = wanted_options(gym, samples, search.mode)
        self.module.set_options(options, form, per_token=search.per_token)
        if weights := config.adapt.option_weights:
            contrasted = wanted_options(gym, samples, ranking_mode(config))
            self.module.contrast(contrasted, form, **weights)

    def run(
        self,
        *,
        row: Float[Tensor, "1 _"] | None = None,
        tasks: Sequence[str] = (),
        score_test: bool = True,
        on_step: Callable[[], object] = lambda: None,
        keep: Callable[[Outcome], object] | None = None,
        stay: bool = False,
    ) -> Outcome:
        """Adapt to one sample of one task, score, and restore the model.

        With several starts, the best on the development rows is kept; test rows are scored only for
        the best so far. PyTorch's random state is restored. ``row`` has the initial routing
        weights, if known; ``tasks`` names the trained tasks for `FewShotResult.begun_as`. Without
        ``score_test`` the test score is NaN. ``on_step`` is called after each optimizer step,
        ``keep`` with the outcome while the model is adapted; with ``stay``, the model remains
        adapted.
        """
        model, adapt = self.module.model, self.config.adapt
        leave, best, again = kept_state(model, adapt.mode), None, None
        with ExitStack() as adapted:
            adapted.callback(leave)
            for init in row_starts(model.router, adapt):
                leave()
                begun_as = None
                if init in AS_TRAINED:
                    nearest = self.nearest_task()
                    row = torch.tensor([[float(nearest)]])
                    begun_as = tasks[nearest] if tasks else None
                device = self.module.device
                with torch.random.fork_rng([device] if device.type == "cuda" else []):
                    torch.manual_seed(self.job.seed)
                    heads = deepcopy(self.heads)
                    apply_mode(model, adapt.mode, init=init, rows=row, heads=heads)
                    if found := self._fit_and_score(best, begun_as, score_test, on_step):
                        best = found
                        again = kept_state(model, adapt.mode) if keep or stay else None
            assert best is not None  # there is at least one start
            if again is not None:
                again()
            if keep is not None:
                keep(best)
            if stay:
                adapted.pop_all()
        return best

    def nearest_task(self) -> int:
        """Return the id of the trained task whose routing has the lowest loss on the rows."""
        known = self.module.model.router
        if not known.task_rows:
            raise ConfigError(
                "init 'nearest_task' and 'best_coefficients' need routing weights of trained "
                f"tasks, which a {type(known).__name__} does not have; use 'mean' or 'coefficients'"
            )
        # Small batches allow to drop bad tasks early.
        rows = self._rows(batch_size=min(8, self.config.data.eval_batch_size))
        model = self.module.model
        trained = model.heads
        if self.heads is not None:
            model.heads = TaskHeads([self.heads.of_task[0]] * model.router.n_tasks)
        try:
            return best_task(self.module, rows.train_dataloader(), self._precision())
        finally:
            model.heads = trained

    def _fit_and_score(
        self,
        best: Outcome | None,
        begun_as: str | None,
        score_test: bool,
        on_step: Callable[[], object],
    ) -> Outcome | None:
        """Train and score; return None if the development score is not better than ``best``."""
        module, adapt, job = self.module, self.config.adapt, self.job
        digest = self.gym.digest(job.task, job.sample)  # digest of the current rows
        data, precision = self._rows(), self._precision()
        embed_tasks(module.model, data)
        history = AdaptationHistory(module.model.router, adapt.max_steps)
        step, dev, test, n_trained = 0, math.nan, math.nan, count_trained(module.model)
        answers: dict[str, Sequence[Prediction]] = {}

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
                on_step=lambda: (history.note_step(), on_step()),
                on_score=history.note_score,
            )
        if best is not None and rank(dev) <= rank(best.result.dev):
            return None
        if score_test:
            batches = data.evaluation_dataloader("test")
            test, answers["test"] = score_batches(module, batches, precision)
            metric, texts = module.metric_names[0], answers_of(answers["test"])[:2]
            if differing := ignored_differences(metric, job.task, *texts):
                _log.warning("%s", differing)
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
            rows=digest,
        )
        return Outcome(module, self.form, result, answers, history)

    def _rows(self, **sizes: int) -> TextToTextDataModule:
        """Return the rows of the job, formatted for the model."""
        return TextToTextDataModule(
            *(self.gym, [self.job.task], self.module.tokenizer),
            self.config.data.model_copy(update={"samples": [self.job.sample], **sizes}),
            decoder_only=is_decoder_only(self.module.model.backbone),
            encoder=is_encoder(self.module.model.backbone),
            seed=self.job.seed,
            n_examples=self.config.adapt.examples,
            form=self.form,
        )

    def _with_examples(self) -> PromptForm:
        """Return the form with as many training rows as fit before every input."""
        rows, backbone = self._rows().train_rows, self.module.model.backbone
        decoder_only, task = is_decoder_only(backbone), self.job.task
        # Prompt and answer of a decoder-only model share its positions.
        answer = self.config.data.max_output_length if decoder_only else 0
        most = (getattr(backbone.config, "max_position_embeddings", None) or math.inf) - answer
        length = self.config.adapt.context_length or int(min(CONTEXT, most))
        if length > most:
            raise ConfigError(
                f"adapt.context_length ({length}) must be at most {most}, the backbone's maximum "
                "input length"
            )
        form = self.form
        if form.descriptions:
            texts = {task: self.gym.description(task) or ""}
            form = form.model_copy(update={"task_descriptions": texts})
        # Files may be sorted by label.
        order = np.random.default_rng([self.job.seed, self.job.sample]).permutation(len(rows))
        asked, answers = rows["input"], rows["references"]
        examples = [[asked[int(place)], answers[int(place)][0]] for place in order]
        return form.with_examples(
            task, examples, length, self.module.tokenizer, decoder_only=decoder_only
        )

    def _precision(self) -> Precision:
        kind: Any = self.config.trainer.precision
        return Precision() if kind == "32-true" else MixedPrecision(kind, self.module.device.type)
