"""Weighted sums of the logits of several tasks, at every step of generation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import LogitsProcessor

from mttl.data.collate import pad_id_of
from mttl.inference.read_prompts import Ids, ReadPrompts, repeated_logits, shares_prompts


@dataclass
class AddedLogits:
    """The logits of one more task for the token after each answer so far.

    The task reads its own prompts once. The answers so far are read at every step, so beams need no
    reordered cache. A model for which `shares_prompts` is false also reads the prompts at every
    step.
    """

    run: Any  # a `Predictor`
    task_id: int
    weight: float
    prompts: Sequence[Ids]
    read: ReadPrompts | None = None

    def after(self, answers: Int[Tensor, "R t"]) -> Float[Tensor, "R V"]:
        """Return the logits after answers; those of one prompt follow each other."""
        model, pad_id = self.run.model.eval(), pad_id_of(self.run.tokenizer)
        given = model, answers.new_full((len(self.prompts),), self.task_id), self.prompts
        with self.run.autocast():
            if not shares_prompts(model):
                labels = functional.pad(answers, (0, 1), value=pad_id)
                logits, _ = repeated_logits(*given, labels, pad_id)
                return logits.unflatten(0, labels.shape)[:, -1]
            if self.read is None:
                self.read = ReadPrompts(*given, len(answers) // len(self.prompts), pad_id)
            return self.read.next_logits(answers)


class LogitSum(LogitsProcessor):
    r"""Adds the logits of other tasks to those of a model, and normalises.

    With the weights :math:`w_i` of tasks, a token has the probability :math:`p(y_t) \propto \prod_i
    p_i(y_t \mid x_i, y_{<t})^{w_i}`, which is the softmax of :math:`\sum_i w_i z_i` for their
    logits. DExperts has the weights 1, :math:`\alpha` and :math:`-\alpha` for a model, an expert
    and an anti-expert.

    References:
        Liu, Sap, Lu, Swayamdipta, Bhagavatula, Smith and Choi, *DExperts: Decoding-Time Controlled
        Text Generation with Experts and Anti-Experts*, ACL 2021, arXiv:2105.03023.
    """

    def __init__(self, weight: float, added: Sequence[AddedLogits], start: int) -> None:
        self._weight, self._added, self._start = weight, added, start

    def __call__(  # type: ignore[override]
        self, input_ids: Int[Tensor, "R L"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        """Return log-probabilities; answers begin at ``start`` of the ids."""
        answers, total, n_real = input_ids[:, self._start :], self._weight * scores, scores.shape[1]
        for each in self._added:
            logits: Any = each.after(answers).to(scores)
            n_real = min(n_real, logits.shape[1])  # vocabularies may be padded differently
            total = total[:, :n_real] + each.weight * logits[:, :n_real]
        return functional.pad(total.log_softmax(1), (0, scores.shape[1] - n_real), value=-torch.inf)
