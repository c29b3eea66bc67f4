"""Likelihoods of several answers to a prompt, with the prompt computed once where possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mttl.data.collate import pad, pad_id_of
from mttl.data.encode import TextEncoder
from mttl.inference.read_prompts import Ids, ReadPrompts, repeated_logits, shares_prompts
from mttl.inference.task_options import check_choices, choice_ids
from mttl.io.errors import TaskError
from mttl.models.backbone import is_decoder_only
from mttl.models.teacher_forcing import at_places, places_of
from mttl.routing.token.masks import IGNORED
from mttl.skills.skilled_model import SkilledModel
from mttl.tasks.task import CHOICES

# Maximum answers computed together.
MOST_ROWS = 512
_ADVICE = "raise data.max_output_length"


@torch.no_grad()
def option_scores(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    options: Sequence[Sequence[Ids]],
    *,
    pad_id: int,
    per_token: bool,
) -> list[list[float]]:
    """Return the log-probability of each option of each prompt, or its mean over tokens.

    The model must be in evaluation mode. Options are ids including the end token.
    """
    found: list[list[float]] = [[] for _ in prompts]
    parts = [
        (place, own[first : first + MOST_ROWS])
        for place, own in enumerate(options)
        for first in range(0, len(own), MOST_ROWS)
    ]
    step = max(1, MOST_ROWS // max(map(len, options)))
    for start in range(0, len(parts), step):
        rows, some = zip(*parts[start : start + step], strict=True)
        asked = [prompts[row] for row in rows]
        losses, counted = option_losses(model, task_ids[[*rows]], asked, some, pad_id=pad_id)
        scores = -losses.sum(2)
        if per_token:
            scores = scores / counted.sum(2).clamp_min(1)
        for row, own, values in zip(rows, some, scores.tolist(), strict=True):
            found[row] += values[: len(own)]
    return found


def option_losses(
    model: SkilledModel,
    task_ids: Int[Tensor, "B"],
    prompts: Sequence[Ids],
    options: Sequence[Sequence[Ids]],
    *,
    pad_id: int,
) -> tuple[Float[Tensor, "B n L"], Bool[Tensor, "B n L"]]:
    """Return the negative log-likelihood of each token of each option, and the mask of tokens.

    Arguments are those of `option_scores`; n is the largest number of options of a prompt.
    """
    n = max(map(len, options))
    filled = [ids for own in options for ids in (*own, *[own[0]] * (n - len(own)))]
    labels = pad(filled, IGNORED).to(task_ids.device)
    given = model, task_ids, prompts
    if shares_prompts(model):
        losses = _read_once(ReadPrompts(*given, n, pad_id), labels)
    else:
        losses = _placed(*repeated_logits(*given, labels, pad_id), labels)
    losses = losses.view(len(prompts), n, -1)
    real = torch.tensor([[place < len(own) for place in range(n)] for own in options])
    counted = (labels != IGNORED).view_as(losses) & real.to(labels.device)[..., None]
    return losses * counted, counted


def _read_once(read: ReadPrompts, labels: Int[Tensor, "Bn L"]) -> Float[Tensor, "Bn L"]:
    """Return the losses of all answers to prompts that were computed once."""
    if read.first is None:
        places = places_of(labels)
        return _placed(read.read(labels, places), labels.flatten()[places], labels)
    first = functional.cross_entropy(read.first, labels[:, 0], reduction="none")
    if labels.shape[1] == 1:
        return first[:, None]
    after = labels[:, 1:]
    places = places_of(after)
    rest = _placed(read.read(labels[:, :-1], places), after.flatten()[places], after)
    return torch.cat([first[:, None], rest], 1)


def _placed(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, "N"], labels: Int[Tensor, "Bn L"]
) -> Float[Tensor, "Bn L"]:
    """Return the losses of targets at the positions of labels, and 0 elsewhere."""
    losses = functional.cross_entropy(logits.float(), targets, reduction="none")
    return at_places(losses, places_of(labels), labels)


@dataclass(frozen=True)
class OptionScorer:
    """Options of tasks, as texts and as ids by task id, and how they are scored.

    A task without options has those of each row. With ``per_token``, scores are means over tokens.
    """

    texts: Mapping[int, Sequence[str]]
    ids: Mapping[int, Sequence[Ids]]
    encoder: TextEncoder
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
        """Encode the options of tasks; ``tasks`` are all tasks in the order of ids.

        Raises a `TaskError` if two options of a task have the same ids because both are truncated.
        """
        texts = {tasks.index(task): list(own) for task, own in options.items()}
        ids = {
            task_id: choice_ids(encoder, own, f"options of '{tasks[task_id]}'", _ADVICE)
            for task_id, own in texts.items()
            if own
        }
        return cls(texts, ids, encoder, per_token)

    def of_row(self, task_id: int, own: Any) -> tuple[Sequence[str], Sequence[Ids]]:
        """Return the options of a row as texts and as ids: those of its task, or its own.

        Raises a `TaskError` if it has no own ones, or they are repeated or truncated to the same.
        """
        if self.texts[task_id]:
            return self.texts[task_id], self.ids[task_id]
        given = [str(one) for one in own] if isinstance(own, list) else []
        texts = check_choices(given, f"column '{CHOICES}' of a row")
        return texts, choice_ids(self.encoder, texts, f"options of the row {texts}", _ADVICE)

    def answers(
        self,
        model: SkilledModel,
        task_ids: Int[Tensor, "B"],
        inputs: Mapping[str, Any],
        choices: Sequence[Sequence[str] | None] = (),
    ) -> dict[int, str]:
        """Return the most probable option of each row whose task has options.

        ``choices`` are the rows' own options; without any, only tasks have options.
        """
        own = choices or [None] * len(task_ids)
        found = {
            row: self.of_row(task_id, own[row])
            for row, task_id in enumerate(task_ids.tolist())
            if self.texts.get(task_id) or (choices and task_id in self.texts)
        }
        rows = [*found]
        if not rows:
            return {}
        real = inputs["attention_mask"].bool()
        scores = option_scores(
            model,
            task_ids[rows],
            [inputs["input_ids"][row][real[row]].tolist() for row in rows],
            [ids for _, ids in found.values()],
            pad_id=pad_id_of(self.encoder.tokenizer),
            per_token=self.per_token,
        )
        return {
            row: texts[own.index(max(own))]
            for (row, (texts, _)), own in zip(found.items(), scores, strict=True)
        }


CERTAIN = 1e-2


@dataclass(frozen=True)
class OptionTraining:
    r"""Two weighted losses over the options of a task, in addition to the answer's loss.

    With the prompt :math:`x`, the right option :math:`y`, wrong options :math:`\hat y^{(n)}` of
    :math:`T^{(n)}` tokens, and :math:`\beta(x, y) = \frac1T \sum_t \log p(y_t \mid x, y_{<t})`:

    .. math::

        L_{UL} &= -\frac{\sum_n \sum_t \log(1 - p(\hat y^{(n)}_t \mid x, \hat y^{(n)}_{<t}))}
            {\sum_n T^{(n)}} \\
        L_{LN} &= -\log \frac{e^{\beta(x, y)}}{e^{\beta(x, y)} + \sum_n e^{\beta(x, \hat y^{(n)})}}

    As in the released code, 0.01 is added within the logarithm to bound the loss of certain wrong
    tokens, and the first loss is a mean over the tokens of a batch.

    References:
        Liu, Tam, Muqeeth, Mohta, Huang, Bansal and Raffel, *Few-Shot Parameter-Efficient
        Fine-Tuning is Better and Cheaper than In-Context Learning* (T-Few), NeurIPS 2022,
        arXiv:2205.05638.
    """

    option_scorer: OptionScorer
    unlikelihood: float
    length_normalised: float

    def losses(self, model: SkilledModel, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the losses with a weight, by name, from another pass over a training batch.

        Raises a `TaskError` if the answer of a row is not an option of its task.
        """
        labels, read = batch["labels"], batch["attention_mask"].bool()
        if is_decoder_only(model.backbone):  # the answer follows the prompt
            read = read & (labels == IGNORED)
        prompts = [ids[real].tolist() for ids, real in zip(batch["input_ids"], read, strict=True)]
        choices = batch.get("choices", [None] * len(labels))
        found = list(map(self.option_scorer.of_row, batch["task_ids"].tolist(), choices))
        options, right = [ids for _, ids in found], []
        for (texts, own), row in zip(found, labels, strict=True):
            answer = row[row != IGNORED].tolist()
            if answer not in own:
                raise TaskError(
                    f"the answer of a training row is not among its options ({', '.join(texts)}), "
                    "which adapt.unlikelihood and adapt.length_normalised require; complete the "
                    "options"
                )
            right.append([*own].index(answer))
        pad_id = pad_id_of(self.option_scorer.encoder.tokenizer)
        losses, counted = option_losses(model, batch["task_ids"], prompts, options, pad_id=pad_id)
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
