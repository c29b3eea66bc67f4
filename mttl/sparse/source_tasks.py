"""Training objectives for tasks with heads, and for tasks on top of different skills."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from mttl.data.collate import pad_id_of
from mttl.data.encode import PromptPrefix
from mttl.data.headed import HeadedCollator, HeadedEncoder
from mttl.heads.task_heads import TaskHeads
from mttl.inference.predictor import batches_by_length
from mttl.models.backbone import hidden_states
from mttl.models.headed import INPUTS
from mttl.sparse.lottery_ticket import Objective
from mttl.sparse.skill_file import SparseSkill
from mttl.tasks.head_form import HeadForm
from mttl.tasks.rows import Row
from mttl.training.loss import global_mean


class HeadedTask:
    """Rows of a task with a head: their losses, and the head's answers.

    Args:
        encoder: Encoder of inputs.
        form: Head of the task; an answer that does not fit it is a `TaskError`.
        rows: Rows, whose first answer is the target.
        heads: A single head.
        prefix: Text before every input.
    """

    def __init__(
        self,
        encoder: HeadedEncoder,
        form: HeadForm,
        rows: Sequence[Row],
        heads: TaskHeads,
        prefix: str = "",
    ) -> None:
        n = self.n_rows = len(rows)
        columns = encoder.columns([form] * n, rows, [PromptPrefix(prefix)] * n, [])
        columns |= {"references": [row.outputs for row in rows], "task_id": [0] * n}
        self._rows = [{name: values[i] for name, values in columns.items()} for i in range(n)]
        self._heads, self._collate = heads, HeadedCollator(pad_id_of(encoder.tokenizer))

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
        device, batch = (
            next(model.parameters()).device,
            self._collate([self._rows[i] for i in rows]),
        )
        batch = {k: x.to(device) if torch.is_tensor(x) else x for k, x in batch.items()}
        inputs = {name: batch[name] for name in INPUTS if name in batch}
        return batch, hidden_states(model, **inputs)


class SourceTasks:
    """Rows of several tasks, each on top of its own skill: multi-source transfer.

    The skills are added for the loss alone, so the model keeps its weights, and the gradient
    is that of these. The loss of a batch is the mean of its tasks' losses, weighted by rows.

    Args:
        model: Network to which the skills belong.
        tasks: Objective and skill of each task.

    References:
        Ansell et al., arXiv:2110.07560, multi-source training.
    """

    def __init__(
        self, model: nn.Module, tasks: Sequence[tuple[Objective, SparseSkill | None]]
    ) -> None:
        self._tasks = [(_Loss(model, objective), skill) for objective, skill in tasks]
        self.n_rows = sum(objective.n_rows for objective, _ in tasks)

    def loss(self, model: nn.Module, rows: Sequence[int], seed: int) -> Float[Tensor, ""]:
        """Return the mean loss of some rows, which are numbered through all tasks."""
        first, total = 0, torch.zeros((), device=next(model.parameters()).device)
        for task, skill in self._tasks:
            n = task.objective.n_rows
            if own := [row - first for row in rows if first <= row < first + n]:
                weights = {} if skill is None else _with_skill(model, skill)
                total = total + len(own) * functional_call(task, weights, (own, seed))
            first += n
        return total / len(rows)


class _Loss(nn.Module):
    """The loss of an objective as a function of the model's weights."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, rows: Sequence[int], seed: int) -> Tensor:
        return self.objective.loss(self.model, rows, seed)


def _with_skill(model: nn.Module, skill: SparseSkill) -> dict[str, Tensor]:
    """Return the changed weights, as functions of the model's."""
    found = {}
    for name, change in skill.changes.items():
        value = model.get_parameter(name)
        places, values = change.indices.to(value.device), change.values.to(value.device)
        found[f"model.{name}"] = value.flatten().index_add(0, places, values).view(value.shape)
    return found
