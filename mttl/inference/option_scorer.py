"""Answers by rank: of the options of a task, the one that the model finds likeliest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mttl.data.collate import pad_id_of
from mttl.data.encode import TextEncoder
from mttl.inference.option_scores import option_losses, option_scores
from mttl.inference.task_options import choice_ids
from mttl.io.errors import TaskError
from mttl.models.backbone import is_decoder_only
from mttl.routing.token.masks import IGNORED
from mttl.skills.skilled_model import SkilledModel


@dataclass(frozen=True)
class OptionScorer:
    """The options of tasks, as texts and as ids by task id, and how they are compared.

    With ``per_token``, likelihoods are means over tokens.
    """

    texts: Mapping[int, Sequence[str]]
    ids: Mapping[int, Sequence[Sequence[int]]]
    pad_id: int
    per_token: bool

    @classmethod
    def of(
        cls,
        options: Mapping[str, Sequence[str]],
        tasks: Sequence[str],
        encoder: TextEncoder,
        *,
        per_token: bool,
    ) -> Self:
        """Encode the options of tasks; ``tasks`` are all tasks in the order of their ids.

        Raises:
            TaskError: If two options of a task have the same ids, since both are cut.
        """
        texts = {tasks.index(task): list(own) for task, own in options.items()}
        advice = "raise data.max_output_length"
        ids = {
            task_id: choice_ids(encoder, own, f"options of '{tasks[task_id]}'", advice)
            for task_id, own in texts.items()
        }
        return cls(texts, ids, pad_id_of(encoder.tokenizer), per_token)

    def answers(
        self, model: SkilledModel, task_ids: Int[Tensor, "B"], inputs: Mapping[str, Any]
    ) -> dict[int, str]:
        """Return the likeliest option of every row of a batch whose task has options."""
        of_row = dict(enumerate(task_ids.tolist()))
        rows = [row for row, task_id in of_row.items() if task_id in self.ids]
        if not rows:
            return {}
        real = inputs["attention_mask"].bool()
        scores = option_scores(
            model,
            task_ids[rows],
            [inputs["input_ids"][row][real[row]].tolist() for row in rows],
            [self.ids[of_row[row]] for row in rows],
            pad_id=self.pad_id,
            per_token=self.per_token,
        )
        return {
            row: self.texts[of_row[row]][own.index(max(own))]
            for row, own in zip(rows, scores, strict=True)
        }


CERTAIN = 1e-2


@dataclass(frozen=True)
class OptionTraining:
    r"""Two losses over the options of a task, added to that of the right answer, with weights.

    With :math:`x` the prompt, :math:`y` the right option, :math:`\hat y^{(n)}` the wrong ones of
    :math:`T^{(n)}` tokens, and :math:`\beta(x, y) = \frac1T \sum_t \log p(y_t \mid x, y_{<t})`:

    .. math::

        L_{UL} &= -\frac{\sum_n \sum_t \log(1 - p(\hat y^{(n)}_t \mid x, \hat y^{(n)}_{<t}))}
            {\sum_n T^{(n)}} \\
        L_{LN} &= -\log \frac{e^{\beta(x, y)}}{e^{\beta(x, y)} + \sum_n e^{\beta(x, \hat y^{(n)})}}

    As in the released code, 0.01 stands within the logarithm, so that a wrong token that is certain
    costs a finite amount, and the mean of the first is over the tokens of a batch.

    References:
        Liu, Tam, Muqeeth, Mohta, Huang, Bansal and Raffel, *Few-Shot Parameter-Efficient
        Fine-Tuning is Better and Cheaper than In-Context Learning* (T-Few), NeurIPS 2022,
        arXiv:2205.05638.
    """

    option_scorer: OptionScorer
    unlikelihood: float
    length_normalised: float

    def losses(self, model: SkilledModel, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the losses that have a weight, by name, from another pass over a training batch.

        Raises:
            TaskError: If the answer of a row is not an option of its task.
        """
        labels, read = batch["labels"], batch["attention_mask"].bool()
        if is_decoder_only(model.backbone):  # behind the prompt stands the answer
            read = read & (labels == IGNORED)
        prompts = [ids[real].tolist() for ids, real in zip(batch["input_ids"], read, strict=True)]
        options = [self.option_scorer.ids[task_id] for task_id in batch["task_ids"].tolist()]
        right = []
        for task_id, own, row in zip(batch["task_ids"].tolist(), options, labels, strict=True):
            answer = row[row != IGNORED].tolist()
            if answer not in own:
                raise TaskError(
                    "the answer of a training row is none of its task's options "
                    f"({', '.join(self.option_scorer.texts[task_id])}), and adapt.unlikelihood and "
                    "adapt.length_normalised compare it with the others; complete the options"
                )
            right.append(list(own).index(answer))
        losses, counted = option_losses(
            model, batch["task_ids"], prompts, options, pad_id=self.option_scorer.pad_id
        )
        places = torch.tensor(right, device=losses.device)
        return {
            name: weight * loss(losses, counted, places)
            for name, weight, loss in (
                ("unlikelihood", self.unlikelihood, unlikelihood),
                ("length_normalised", self.length_normalised, length_normalised),
            )
            if weight
        }


def unlikelihood(
    losses: Float[Tensor, "B n L"], counted: Bool[Tensor, "B n L"], right: Int[Tensor, "B"]
) -> Float[Tensor, ""]:
    """Return the mean unlikelihood loss of the counted tokens of wrong options."""
    wrong = counted.clone()
    wrong[torch.arange(len(right), device=right.device), right] = False
    each = -torch.log(1 - torch.exp(-losses) + CERTAIN)
    return (each * wrong).sum() / wrong.sum().clamp_min(1)


def length_normalised(
    losses: Float[Tensor, "B n L"], counted: Bool[Tensor, "B n L"], right: Int[Tensor, "B"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy of the right option under the means over counted tokens."""
    means = -losses.sum(2) / counted.sum(2).clamp_min(1)
    means = means.masked_fill(~counted.any(2), -torch.inf)
    return functional.cross_entropy(means, right)
