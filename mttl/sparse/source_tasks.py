"""Training objectives for tasks with heads, and for tasks on top of different skills."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedTokenizerBase

from mttl.data.collate import pad_id_of
from mttl.data.encode import PromptPrefix
from mttl.data.headed import HeadedCollator, HeadedEncoder
from mttl.heads.task_heads import TaskHeads
from mttl.inference.predictor import batches_by_length
from mttl.models.backbone import hidden_states
from mttl.models.headed import INPUTS
from mttl.sparse.lottery_ticket import Objective
from mttl.sparse.skill_file import SparseChange
from mttl.tasks.head_form import HeadForm
from mttl.tasks.rows import Row
from mttl.training.loss import global_mean


class HeadedTask:
    """Rows of a task with a head: their losses, and the head's answers.

    Args:
        tokenizer: Tokenizer of the model.
        max_length: Maximum ids of an input.
        form: Head of the task; an answer that does not fit it is a `TaskError`.
        rows: Rows, whose first answer is the target.
        heads: A single head.
        prefix: Text before every input.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        form: HeadForm,
        rows: Sequence[Row],
        heads: TaskHeads,
        prefix: str = "",
    ) -> None:
        n = self.n_rows = len(rows)
        encoder = HeadedEncoder(tokenizer, max_length)
        columns = encoder.columns([form] * n, rows, [PromptPrefix(prefix)] * n, [])
        columns |= {"references": [row.outputs for row in rows], "task_id": [0] * n}
        self._rows = [{name: values[i] for name, values in columns.items()} for i in range(n)]
        self._heads, self._collate = heads, HeadedCollator(pad_id_of(tokenizer))

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss per word or text; the seed has no effect."""
        batch, hidden = self._read(model, rows)
        return global_mean(self._heads.losses(batch["task_ids"], hidden, batch), batch["labels"])

    @torch.no_grad()
    def answers(self, model: nn.Module, on_rows: Callable[[int], object]) -> list[str]:
        """Return the answer of every row; ``on_rows`` is called with the size of each batch."""
        found: dict[int, str] = {}
        model.eval()
        self._heads.eval()
        for rows in batches_by_length([len(row["input_ids"]) for row in self._rows], 64):
            batch, hidden = self._read(model, rows)
            answers = self._heads.answers(batch["task_ids"], hidden, batch)
            found |= zip(rows, answers, strict=True)
            on_rows(len(rows))
        return [found[row] for row in range(self.n_rows)]

    def _read(
        self, model: nn.Module, rows: Sequence[int]
    ) -> tuple[Mapping[str, Any], Float[Tensor, "B L D"]]:
        """Return a batch and its last hidden states."""
        collated = self._collate([self._rows[i] for i in rows])
        batch = move_data_to_device(collated, next(model.parameters()).device)
        inputs = {name: batch[name] for name in INPUTS if name in batch}
        return batch, hidden_states(model, **inputs)


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
