"""Training objectives for rows of tasks or raw text, for any model of transformers.

| objective | model | a row |
|---|---|---|
| `TaskObjective` | encoder–decoder or decoder-only | an input and its answer |
| `TaskObjective` with a head | any | words with tags, a label, or a tree |
| `TextObjective` | decoder-only | each token, from the previous ones |
| with `MaskedTokens` | encoder-only | 15 % of the tokens, from the others |
| with `InfilledSpans` | encoder–decoder | the text, from one with masked spans |
| `SourceTasks` | any | a row of one of several tasks |
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import TrainCollator, pad_id_of
from mttl.data.raw_text import Corruption, LineEncoder
from mttl.heads.task_heads import TaskHeads
from mttl.inference.predictor import in_batches
from mttl.io.errors import ConfigError
from mttl.models.backbone import hidden_states
from mttl.models.headed import INPUTS
from mttl.models.teacher_forcing import forced_logits
from mttl.sparse.lottery_ticket import Objective
from mttl.sparse.skill_file import SparseChange
from mttl.training.loss import answer_losses, global_mean


class TaskObjective:
    """Rows of a task: the losses of their answers, or of its head.

    Args:
        rows: Rows of `mttl.data.prepare`.
        collate: Collator of the rows for training.
        heads: A single head; by default answers are generated.
    """

    def __init__(self, rows: Any, collate: Callable[..., Any], heads: TaskHeads | None = None):
        self.n_rows = len(rows)
        self._rows, self._collate, self._heads = rows, collate, heads

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss per token, word or text; only raw text depends on the seed."""
        batch = self._batch(model, self._shown(rows, seed))
        if self._heads is None:
            logits, targets, places = forced_logits(model, batch)
            return global_mean(answer_losses(logits, targets, places), targets)
        losses = self._heads.losses(batch["task_ids"], _states(model, batch), batch)
        return global_mean(losses, batch["labels"])

    @torch.no_grad()
    def answers(self, model: nn.Module, on_rows: Callable[[int], object]) -> list[str]:
        """Return the head's answer to every row; ``on_rows`` is called with each batch's size."""
        assert self._heads is not None
        heads = self._heads.eval()
        model.eval()

        def answered(rows: list[int]) -> list[str]:
            batch = self._batch(model, self._shown(rows, 0))
            return heads.answers(batch["task_ids"], _states(model, batch), batch)

        return in_batches([len(row["input_ids"]) for row in self._rows], 64, answered, on_rows)

    def _shown(self, rows: Sequence[int], seed: int) -> list[Mapping[str, Any]]:
        """Return some rows for the collator."""
        return [self._rows[row] for row in rows]

    def _batch(self, model: nn.Module, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return move_data_to_device(self._collate(rows), next(model.parameters()).device)


def _states(model: nn.Module, batch: Mapping[str, Any]) -> Float[Tensor, "B L D"]:
    """Return the last hidden states of a batch of `mttl.data.headed`."""
    return hidden_states(model, **{name: batch[name] for name in INPUTS if name in batch})


class TextObjective(TaskObjective):
    """The loss of lines of raw text: causal, or of predicting what a ``corruption`` hides.

    Raises a `ConfigError` if no line has tokens, or ``max_length`` is too small.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
        corruption: Corruption | None = None,
    ) -> None:
        self.corruption, causal = corruption, corruption is None
        self._encoder = LineEncoder(tokenizer, max_length, causal=causal, setting="--max-length")
        self.lines: list[list[int]] = [ids for ids in self._encoder.encode(texts) if ids]
        if not self.lines:
            raise ConfigError("the text has no line with tokens")
        super().__init__(self.lines, TrainCollator(pad_id_of(tokenizer), causal))

    def _shown(self, rows: Sequence[int], seed: int) -> list[Mapping[str, Any]]:
        draw, lines = random.Random(seed), [self.lines[row] for row in rows]
        if self.corruption is None:  # an answer to nothing
            pairs = [([], self._encoder.whole(line)) for line in lines]
        else:
            pairs = [self.corruption.pair(line, draw) for line in lines]
        return [{"input_ids": ids, "labels": labels, "task_id": 0} for ids, labels in pairs]


class SourceTasks:
    """Rows of several tasks, each on top of its own skill: multi-source transfer.

    The skills are added for the loss alone, so the model keeps its weights, and the gradient
    is that of these. The loss of a batch is the mean of its tasks' losses, weighted by rows.

    Args:
        model: Network to which the skills belong.
        tasks: Objective of each task, and the changes of its skill.

    References:
        Ansell et al., arXiv:2110.07560, multi-source training.
    """

    def __init__(
        self, model: nn.Module, tasks: Sequence[tuple[Objective, Mapping[str, SparseChange]]]
    ) -> None:
        self._tasks = [(_Loss(model, objective), changes) for objective, changes in tasks]
        self.n_rows = sum(objective.n_rows for objective, _ in tasks)

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss of some rows, which are numbered through all tasks."""
        first, losses = 0, []
        for task, changes in self._tasks:
            n = task.objective.n_rows
            if own := [row - first for row in rows if first <= row < first + n]:
                loss = functional_call(task, _changed(model, changes), (own, seed))
                losses.append(len(own) / len(rows) * loss)
            first += n
        return torch.stack(losses).sum()


class _Loss(nn.Module):
    """The loss of an objective as a function of the model's weights."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, rows: Sequence[int], seed: int) -> Tensor:
        return self.objective.loss(self.model, rows, seed)


def _changed(model: nn.Module, changes: Mapping[str, SparseChange]) -> dict[str, Tensor]:
    """Return the weights with changes, as functions of the model's."""
    found = {}
    for name, change in changes.items():
        value = model.get_parameter(name)
        places, values = change.indices.to(value.device), change.values.to(value.device)
        found[f"model.{name}"] = value.flatten().index_add(0, places, values).view(value.shape)
    return found
