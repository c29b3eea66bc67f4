"""Lightning module for text-to-text tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from lightning_fabric.plugins import Precision
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mttl.checkpoints.run_callbacks import not_finite
from mttl.checkpoints.whole_tensors import whole
from mttl.config.optim_schema import AdamW, Optim
from mttl.config.plugin_section import PluginSection
from mttl.config.schema import Generation
from mttl.data.prompt_form import PromptForm
from mttl.data.raw_text import texts_of_losses
from mttl.inference.option_scores import OptionScorer, OptionTraining
from mttl.io.errors import ConfigError, TrainingError, raised_as
from mttl.metrics.crossfit import add_answers, build_metric, computed
from mttl.models.backbone import is_decoder_only
from mttl.models.generation import generate_texts, search_settings
from mttl.models.headed import headed_answers, headed_losses
from mttl.models.teacher_forcing import at_places, forced_logits
from mttl.moe.parallel import shared_parameters
from mttl.plugins.classes import plugin_call
from mttl.routing.context import Routing
from mttl.skills.skilled_model import SkilledModel
from mttl.training.distributed import shard_model
from mttl.training.loss import (
    answer_losses,
    divergences,
    divergences_from,
    example_means,
    global_mean,
)
from mttl.training.module import ResumableModule
from mttl.training.token_balance import LOADS, token_loads


@dataclass(frozen=True)
class Prediction:
    """The model's answer to one row."""

    task_id: int
    sample: int
    row: int
    input: str
    references: tuple[str, ...]
    prediction: str
    source: Mapping[str, Any] = field(default_factory=dict)  # as of `mttl.tasks.rows.Row`


def answers_of(rows: Sequence[Prediction]) -> tuple[Any, Any, Any]:
    """Return the predictions, references and sources of rows, for metrics."""
    columns = "prediction", "references", "source"
    predictions, references, sources = ([getattr(row, name) for row in rows] for name in columns)
    return predictions, references, sources


class TextToTextModule(ResumableModule):
    """Trains a skilled model on text-to-text tasks and scores its answers.

    ``metrics`` has the metric of every task, in the order of task ids. By default, answers are
    generated greedily and the loss is cross-entropy.
    """

    model: SkilledModel
    loss_totals: Tensor  # sum and count of validation losses per task

    def __init__(
        self,
        model: SkilledModel,
        tokenizer: PreTrainedTokenizerBase,
        metrics: Mapping[str, str],
        optim: Optim | None = None,
        generation: Generation | None = None,
        *,
        max_output_length: int = 64,
        loss: PluginSection | None = None,
    ) -> None:
        super().__init__(model, optim or AdamW(kind="adamw"))
        self.tokenizer = tokenizer
        self.tasks = tuple(metrics)
        self.metric_names = tuple(metrics.values())
        own: Any = getattr(model.backbone, "generation_config", None)
        self.generation = search_settings(generation or Generation(), max_output_length, own)
        self.plugin_loss = None if loss is None else build_loss(loss)
        self.option_scorer: OptionScorer | None = None
        self.option_training: OptionTraining | None = None
        self.fixed_model: SkilledModel | None = None
        # Lists by task id, because task names may be invalid as module names.
        self.scores: Any = nn.ModuleList(build_metric(metric) for metric in metrics.values())
        self.answers: list[Prediction] = []
        self._last_loss: Tensor | None = None
        self._last_batch: Mapping[str, Any] | None = None
        self._shares: list[Tensor] = []  # losses of this step's batches

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            device = self.trainer.strategy.root_device
            shard_model(self.model, self.device_mesh["data_parallel"], device)

    def nll(
        self, batch: Mapping[str, Any]
    ) -> tuple[Float[Tensor, "B L"], Int[Tensor, "B L"], Routing]:
        """Return the loss of every position, the labels, and the routing of the pass."""
        if self.model.heads is not None:
            return headed_losses(self.model, batch)
        logits, labels, places, routing = _answered(self.model, batch)
        return answer_losses(logits, labels, places), labels, routing

    def training_losses(
        self, batch: Mapping[str, Any]
    ) -> tuple[Float[Tensor, "B L"], Int[Tensor, "B L"], Routing]:
        """Return the same as `nll`, with the training loss."""
        losses, labels, routing, logits, places = self._trained(batch)
        fared = example_means(losses.detach(), labels)
        trained = batch["references"] if places is None else len(places)
        n = len(batch["task_ids"]) if trained else 0  # padding rows are not trained on
        ids = batch["task_ids"][:n]
        router, mixing = self.model.router, routing.mixing[:, :n]
        choice = router.choice_loss(ids, mixing, fared[:n]) if router.draws else None
        if choice is not None:
            routing.add_losses({"choice": global_mean(choice, ids, batch.get("step_rows"))})
        apart = {}
        if weight := router.consistency:
            apart["consistency"] = weight, divergences(logits, _answered(self.model, batch)[0])
        if self.fixed_model is not None:
            task_ids = self._fixed_ids.to(ids.device)[batch["task_ids"]]
            with torch.no_grad():
                fixed = _answered(self.fixed_model.eval(), {**batch, "task_ids": task_ids})[0]
            apart["divergence"] = self._fixed_weight, divergences_from(fixed, logits)
        for name, (weight, distances) in apart.items():
            assert places is not None  # heads do not work with it
            distances = at_places(distances, places, labels)
            mean = global_mean(distances, labels, batch.get("step_tokens"))
            routing.add_losses({name: weight * mean})
        if self.option_training is not None:
            routing.add_losses(self.option_training.losses(self.model, batch))
        return losses, labels, routing

    def _trained(self, batch: Mapping[str, Any]) -> tuple[Any, Any, Routing, Any, Any]:
        """Return training losses, labels and routing, and without heads logits and their places."""
        if self.model.heads is not None:
            return (*headed_losses(self.model, batch), None, None)
        logits, labels, places, routing = _answered(self.model, batch)
        return self._losses(logits, labels, places), labels, routing, logits, places

    def whole_loss(self, batch: Mapping[str, Any]) -> tuple[Float[Tensor, ""], Routing]:
        """Return the loss of a batch with the prior and auxiliary losses, and the routing."""
        losses, labels, routing = self.training_losses(batch)
        prior = self.model.router.prior_loss().to(losses.device)
        return global_mean(losses, labels) + prior + sum(routing.losses.values()), routing

    def _losses(
        self, logits: Float[Tensor, "N V"], labels: Int[Tensor, "B L"], places: Int[Tensor, "N"]
    ) -> Float[Tensor, "B L"]:
        if self.plugin_loss is None:
            return answer_losses(logits, labels, places, self.optim.label_smoothing)
        with plugin_call(self.plugin_loss):
            losses = self.plugin_loss(logits, labels.flatten()[places])
        if not isinstance(losses, Tensor) or losses.shape != places.shape:
            given = getattr(losses, "shape", None)
            shape = type(losses).__name__ if given is None else f"losses of shape {tuple(given)}"
            raise TrainingError(
                f"{type(self.plugin_loss).__name__} returned {shape}; it must return one loss per "
                f"token, shape {tuple(places.shape)}"
            )
        return at_places(losses, places, labels)

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> Tensor | dict[str, Tensor]:
        """Return the loss of a batch, including the router's prior and auxiliary losses.

        With token routing, the experts' loads are returned as well. Raises a `DivergedError` if the
        loss of the previous step was not finite.
        """
        losses, labels, routing = self.training_losses(batch)
        loss = global_mean(losses, labels, batch.get("step_tokens"))
        self._watch(loss.detach(), batch)
        prior = self.model.router.prior_loss().to(loss.device)
        total = self._mean_over_step(loss + prior + sum(routing.losses.values()), batch)
        # Each process has its share of the mean over all tokens.
        shown = loss
        if "step_tokens" in batch:
            first = batch_idx % self.trainer.accumulate_grad_batches == 0
            self._shares = [] if first else self._shares
            self._shares.append(loss.detach())
            shown = torch.stack(self._shares).sum() / batch["step_parts"]
        self.log("train/loss", shown, prog_bar=True, batch_size=len(labels), sync_dist=True)
        if prior.requires_grad:
            self.log("train/prior", prior, batch_size=len(labels))
        for name, value in routing.losses.items():
            self.log(f"train/{name}", value, batch_size=len(labels))
        if not routing.records:
            return total
        return {"loss": total, LOADS: token_loads(self.model, routing.records)}

    def _mean_over_step(self, loss: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Scale a loss if its step has fewer batches than Lightning divides by."""
        if "step_parts" not in batch:
            return loss
        return loss * (self.trainer.accumulate_grad_batches / batch["step_parts"])

    def on_validation_epoch_start(self) -> None:
        # Half precision could not count beyond 256 rows.
        dtype = torch.promote_types(self.dtype, torch.float32)  # type: ignore[arg-type]
        self.loss_totals = torch.zeros(2, len(self.tasks), dtype=dtype, device=self.device)

    def _watch(self, loss: Tensor, batch: Mapping[str, Any]) -> None:
        """Check the previous step's loss, because the current one may still be computing."""
        if self._last_loss is not None and not torch.isfinite(self._last_loss):
            raise not_finite(f"the loss is {self._last_loss.item()}", self.global_step)
        self._last_loss, self._last_batch = loss, batch

    def is_finite_on(self, batch: Mapping[str, Any], precision: Precision) -> bool:
        """Return whether the loss of a batch is finite, without changing random states."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices), precision.forward_context():
            return bool(self._trained(batch)[0].isfinite().all())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise a `DivergedError` if the last batch's loss is not finite in some process."""
        if self._last_batch is not None:
            finite = self.is_finite_on(self._last_batch, self.trainer.precision_plugin)
            if not self.trainer.strategy.reduce_boolean_decision(finite):
                raise not_finite("the loss after the step is not finite", self.global_step)
        super().on_save_checkpoint(checkpoint)

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        losses, labels, _ = self.nll(batch)
        if batch["rows"]:
            means = example_means(losses, labels)
            entries = torch.stack([means, torch.ones_like(means)]).to(self.loss_totals.dtype)
            self.loss_totals.index_add_(1, batch["task_ids"], entries)
        by_task: dict[int, list[Prediction]] = {}
        for row in self.predict(batch, (losses, labels)):
            by_task.setdefault(row.task_id, []).append(row)
        for task_id, rows in by_task.items():
            name = self.metric_names[task_id]
            add_answers(self.scores[task_id], name, *answers_of(rows))

    def on_validation_epoch_end(self) -> None:
        """Log the loss and score of every task, and their means over tasks."""
        # Every process computes every metric, because metrics synchronise.
        scores = [computed(metric) for metric in self.scores]
        for metric in self.scores:
            metric.reset()
        totals = self.trainer.strategy.reduce(self.loss_totals, reduce_op="sum")
        seen = totals[1].nonzero().flatten().tolist()
        if not seen:
            return
        losses = totals[0] / totals[1]
        values = {}
        for task_id in seen:
            values[f"val/{self.tasks[task_id]}/score"] = scores[task_id]
            values[f"val/{self.tasks[task_id]}/loss"] = losses[task_id]
        values["val/loss"] = losses[seen].mean()
        for name, fact in self.model.skill_facts().items():
            values[f"skills/{name}"] = whole(fact)
        self.log_dict(values, sync_dist=True)
        mean = mean_score([scores[task_id] for task_id in seen])
        self.log("val/score", mean, prog_bar=True, sync_dist=True)

    def on_test_epoch_start(self) -> None:
        self.answers.clear()

    def test_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        self.answers.extend(self.predict(batch))

    @torch.no_grad()
    def predict(self, batch: Mapping[str, Any], known: Any = None) -> list[Prediction]:
        """Return the answers to an evaluation batch; of raw text, the losses of its tokens.

        ``known`` are the losses and labels of `nll`, if they have been computed.
        """
        if "generation_inputs" in batch:
            choices = batch.get("choices", [None] * len(batch["rows"]))  # not of a dummy row
            texts = self.answer(batch["task_ids"], batch["generation_inputs"], choices)
        else:
            texts = texts_of_losses(*(known or self.nll(batch)[:2]))
        if not batch["rows"]:
            return []
        columns = [batch[name] for name in ("samples", "rows", "inputs", "references")]
        return [
            Prediction(task_id, int(sample), int(row), text, tuple(references), answer, source)
            for task_id, sample, row, text, references, answer, source in zip(
                batch["task_ids"].tolist(), *columns, texts, batch["sources"], strict=True
            )
        ]

    def set_options(
        self, options: Mapping[str, Sequence[str]], form: PromptForm, *, per_token: bool
    ) -> None:
        """Answer tasks with options by likelihood, or by its mean per token."""
        if options:
            self.option_scorer = self._option_scorer(options, form, per_token)

    def contrast(
        self, options: Mapping[str, Sequence[str]], form: PromptForm, **weights: float
    ) -> None:
        """Add losses over options to training."""
        self.option_training = OptionTraining(self._option_scorer(options, form, True), **weights)

    def stay_near(self, fixed: SkilledModel, task_ids: Int[Tensor, "T"], weight: float) -> None:
        """Add the divergence from a fixed model, whose task ids are given, to the training loss."""
        self.fixed_model = fixed.requires_grad_(False)
        self._fixed_ids, self._fixed_weight = task_ids, weight

    def _kept(self, state: dict[str, Tensor]) -> list[str]:
        return [name for name in super()._kept(state) if not name.startswith("fixed_model.")]

    def _option_scorer(
        self, options: Mapping[str, Sequence[str]], form: PromptForm, per_token: bool
    ) -> OptionScorer:
        encoder = form.encoder(self.tokenizer, decoder_only=is_decoder_only(self.model.backbone))
        return OptionScorer.of(options, self.tasks, encoder, per_token=per_token)

    def answer(
        self,
        task_ids: Int[Tensor, "B"],
        inputs: Mapping[str, Tensor],
        choices: Sequence[Sequence[str] | None] = (),
    ) -> list[str]:
        """Return an answer to each prompt: the most probable option, or generated text."""
        if self.model.heads is not None:
            return headed_answers(self.model, task_ids, inputs)
        if self.option_scorer is None:
            return self._generated(task_ids, inputs)
        found = self.option_scorer.answers(self.model, task_ids, inputs, choices)
        rest = [row for row in range(len(task_ids)) if row not in found]
        if rest:
            others = {name: value[rest] for name, value in inputs.items()}
            found |= dict(zip(rest, self._generated(task_ids[rest], others), strict=True))
        return [found[row] for row in range(len(task_ids))]

    def _generated(self, task_ids: Int[Tensor, "B"], inputs: Mapping[str, Tensor]) -> list[str]:
        # Distributed experts are needed until all processes have finished.
        waits = {"synced_gpus": True} if shared_parameters(self.model) else {}
        return generate_texts(
            partial(self.model.generate, task_ids),
            self.tokenizer,
            inputs,
            decoder_only=is_decoder_only(self.model.backbone),
            **self.generation,
            **waits,
        )


def build_loss(section: PluginSection) -> nn.Module:
    """Build a custom loss; raises a `ConfigError` if it has parameters."""
    with raised_as(ConfigError, "section loss", ValueError):
        loss = section.make()
    if any(True for _ in loss.parameters()):
        raise ConfigError(
            f"section loss: '{section.kind}' has parameters, which are not trained; use buffers "
            "for constants"
        )
    return loss


def mean_score(scores: Sequence[float]) -> float:
    """Return the mean over tasks; undefined scores (NaN) count as 0."""
    return float(torch.tensor(scores, dtype=torch.float64).nan_to_num(0.0).mean())


def _answered(
    model: SkilledModel, batch: Mapping[str, Any]
) -> tuple[Float[Tensor, "N V"], Int[Tensor, "B L"], Int[Tensor, "N"], Routing]:
    """Return the logits at answer positions, the labels, the positions, and the routing."""
    routing = model.route(batch["task_ids"], inputs=batch)
    with model.slot.use(routing):
        logits, labels, places = forced_logits(model.backbone, batch)
    return logits, labels, places, routing
